"""Rows are erased from roots of several nights."""
