"""Open a published release, and search it."""
