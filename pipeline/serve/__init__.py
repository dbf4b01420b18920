"""A small HTTP service over the current release of a root.

`app` has the routes, `batches` answers concurrent requests together, `follow` swaps to newer releases, and
`page` is the page on which people look at a corpus.
"""
