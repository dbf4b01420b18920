"""Near-duplicates of a release: search, compare, group, and write a page."""
