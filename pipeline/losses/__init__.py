"""Losses as pure functions of representations: tensors in, a scalar out, no model and no state.

A loss whose rows see each other (contrastive, momentum, context, divergence of similarities) wants the whole batch, gathered over ranks and chunks; the others
are means over rows. All compute in float32 or better whatever comes in, under autocast too.
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
from pipeline.losses.contrastive import candidate_logits, cosines, info_nce, nt_xent
from pipeline.losses.distillation import embedding_distillation, margin_distillation, similarity_distillation
from pipeline.losses.divergence import pser, r_drop, symmetric_divergence
from pipeline.losses.matryoshka import matryoshka
from pipeline.losses.momentum import enqueue, moco, moco_logits, moved_average, random_queue
from pipeline.losses.pairs import contrastive_tension, cosine_regression, equality, row_cosines, triplet

__all__ = [
    "FEATURES",
    "SBERT",
    "Feature",
    "candidate_logits",
    "classification",
    "contrastive_tension",
    "cosine_regression",
    "cosines",
    "embedding_distillation",
    "enqueue",
    "equality",
    "info_nce",
    "margin_distillation",
    "mask_words",
    "masked_lm",
    "matryoshka",
    "moco",
    "moco_logits",
    "moved_average",
    "nt_xent",
    "pair_features",
    "pser",
    "quick_thoughts",
    "r_drop",
    "random_queue",
    "row_cosines",
    "similarity_distillation",
    "symmetric_divergence",
    "triplet",
]
