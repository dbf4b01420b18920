"""The log of queries that a service writes, and the choice of queries from it.

`lines` is the format, `draws` the sample of each client, `file` the file on disk, `choose` the choice of
queries for gates.queries, and `forget` removes queries from both files.
"""
