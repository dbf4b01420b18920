"""Building the index of a release, or extending the one of the previous release.

From outside: `index`, `extend`.
"""
