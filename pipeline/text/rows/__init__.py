"""Rows for training: columns by role, the order of batches, mixtures of sources, false negatives.

Training and its flows import from here: `open_training_rows`, the orders, `rank_rows`. The units that `manta
augment` writes are read as training files too.
"""
