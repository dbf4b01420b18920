"""Training rows that are built from other data. One file for each kind, which the registry finds."""
