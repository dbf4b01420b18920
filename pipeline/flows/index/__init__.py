"""Building the index of a release, or extending the one of the previous release.

From outside: `build`, `extend`, and the records in `records`.
"""
