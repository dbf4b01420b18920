"""Read a corpus: list and parse its files, quarantine bad rows, resolve ids, write units and tables.

The flows import `ingest`, and for plans and reports `sources`, `reader` and `quarantine`. `normalize`,
`columns` and `listing` depend on no corpus and may be imported from anywhere.
"""
