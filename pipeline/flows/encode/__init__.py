"""Encoding units of the corpus into units of vectors, each exactly once, with harmful texts isolated.

From outside: `encode`, `EncodeUnit`, and `EncodeBlocks` for a Ray dataset of your own.
"""
