"""Erase rows from all files below a root: new files first, then one commit, then the old files go."""
