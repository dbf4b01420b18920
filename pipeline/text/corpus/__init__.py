"""Read a corpus: list and parse its files, quarantine bad rows, resolve ids, write units and tables.

`ingest` does all of it. `sources` lists the files, `reader` reads them, and `quarantine` lists the rows that
a release leaves out.
"""
