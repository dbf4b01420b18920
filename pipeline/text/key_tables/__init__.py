"""The key tables of a corpus: its rows by id, and the rows of its units by text, in buckets by hash."""
