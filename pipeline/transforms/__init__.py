"""Transforms of embeddings, such as whitening: fitted once, immutable, and stored in one file each.

`transform` has their protocol and registry, `chain` fits them, `choose` tunes their settings, and `compare`
scores them against the raw vectors.
"""
