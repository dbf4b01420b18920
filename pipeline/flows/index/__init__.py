"""Build the index of a release, or extend the index of the previous release.

Other packages use `build`, `extend`, and the types in `records`.
"""
