"""Export a release to a target, or the changes since the release that the target holds."""
