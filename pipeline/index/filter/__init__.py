"""Search only the rows of an index that pass a filter."""
