"""Reading a corpus: sources, formats, columns, quarantine, resolving of ids, and writing it as units.

From outside: `ingest`.
"""
