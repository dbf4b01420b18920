"""Formulas of the poolings in numpy, text by text."""

from collections.abc import Callable, Mapping

import numpy as np

from pipeline.models.spec.pooling import POOLINGS

Layers = Mapping[int, np.ndarray]
"""states (tokens, d) of one text by layer: 0, 1, -2, -1, and TABLE for the rows of the word table"""
TABLE = 99
FORMULAS: Mapping[str, Callable[[Layers, np.ndarray], np.ndarray]] = {
    "cls": lambda h, at: h[-1][at[0]],
    "cls_mlp": lambda h, at: h[-1][at[0]],  # the trained layer after it is not part of the pooling
    "max": lambda h, at: h[-1][at].max(0),
    "mean": lambda h, at: h[-1][at].mean(0),
    "sqrt_len": lambda h, at: h[-1][at].sum(0) / np.sqrt(len(at)),
    "weighted_mean": lambda h, at: np.average(h[-1][at], axis=0, weights=at + 1),
    "sum": lambda h, at: h[-1][at].sum(0),
    "last": lambda h, at: h[-1][at[-1]],
    "first_last": lambda h, at: ((h[1] + h[-1]) / 2)[at].mean(0),
    "static_last": lambda h, at: ((h[0] + h[-1]) / 2)[at].mean(0),
    "last2": lambda h, at: ((h[-2] + h[-1]) / 2)[at].mean(0),
    "static": lambda h, at: h[0][at].mean(0),
    "table": lambda h, at: h[TABLE][at].mean(0),
    "ngrams": lambda h, at: h[-1][at].mean(0),  # its convolutions are applied earlier
    "mask": lambda h, at: h[-1][at[0]],
    "ends": lambda h, at: np.concatenate([np.split(h[-1][at[-1]], 2)[0], np.split(h[-1][at[0]], 2)[1]]),
}
"""name -> vector of one text; the second argument holds the positions of the pooled tokens"""
OF_TRANSFORMERS = [name for name in FORMULAS if name not in ("cls_mlp", "ngrams", "mask", "ends")]
"""poolings that every transformer encoder can have"""
OF_WORDS = [pooling.name for pooling in POOLINGS.values() if pooling.words]
"""poolings that word vectors can have"""
