"""Loss functions of representations: tensors in, a scalar out, without a model and without state.

A loss that compares rows with each other (contrastive, momentum, context, divergence of similarities) needs
the whole batch, gathered over ranks and chunks; the others are means over rows. Every loss computes in at
least float32, under autocast too. Import losses from this package, not from its modules.
"""

from pipeline.losses.classification import (
    FEATURES,
    SBERT,
    Feature,
    classification,
    mask_words,
    masked_lm,
    pair_features,
)
from pipeline.losses.context import quick_thoughts
from pipeline.losses.contrastive import cosines, info_nce, nt_xent
from pipeline.losses.distillation import embedding_distillation, similarity_distillation
from pipeline.losses.divergence import pser, symmetric_divergence
from pipeline.losses.momentum import enqueue, moco, moving_average, random_queue
from pipeline.losses.pairs import contrastive_tension, cosine_regression, triplet

__all__ = [
    "FEATURES",
    "SBERT",
    "Feature",
    "classification",
    "contrastive_tension",
    "cosine_regression",
    "cosines",
    "embedding_distillation",
    "enqueue",
    "info_nce",
    "mask_words",
    "masked_lm",
    "moco",
    "moving_average",
    "nt_xent",
    "pair_features",
    "pser",
    "quick_thoughts",
    "random_queue",
    "similarity_distillation",
    "symmetric_divergence",
    "triplet",
]
