"""Ingest a corpus: read the files that changed, resolve ids, write new units and the key tables."""
