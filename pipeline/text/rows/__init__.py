"""Rows for training: columns by role, the order of batches, mixtures of sources, false negatives.

Training and its flows use `open_training_rows`, the orders and `rank_rows`. The units that `manta augment`
writes can be training files too.
"""
