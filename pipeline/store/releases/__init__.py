"""Releases: manifests, commits, summaries, checks, and the removal of old ones."""
