"""Build the index of a release, or extend the index of the previous release."""
