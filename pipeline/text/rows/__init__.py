"""Rows for training and evaluation: roles of columns, pairs, batches, mixtures, false negatives.

Nothing in here reads a corpus for a night.
"""
