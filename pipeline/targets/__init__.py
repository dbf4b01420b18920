"""Targets of exports, such as a table of PostgreSQL: one file for each kind, which the registry finds."""
