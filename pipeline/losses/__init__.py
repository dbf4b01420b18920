"""Loss functions of vectors: they take tensors and return a scalar, without a model or state.

A loss that compares rows with each other (contrastive, momentum, context, divergence of similarities) needs
the vectors of the whole batch, of all ranks and chunks; the other losses are means over rows. Every loss is
computed in float32 or wider, under autocast too. Import losses from this package, not from its modules.
"""

from pipeline.losses.classification import (
    FEATURES,
    SBERT_FEATURES,
    Feature,
    classification,
    mask_tokens,
    masked_lm,
    pair_features,
)
from pipeline.losses.context import quick_thoughts
from pipeline.losses.contrastive import Similarity, cosines, info_nce, nt_xent
from pipeline.losses.distillation import embedding_distillation, similarity_distillation
from pipeline.losses.divergence import pser, symmetric_divergence
from pipeline.losses.information import jensen_shannon
from pipeline.losses.momentum import enqueue, moco, moving_average, random_queue
from pipeline.losses.pairs import contrastive_tension, cosine_regression, score_regression, triplet
from pipeline.losses.words import sampled_word_prediction, word_prediction

__all__ = [
    "FEATURES",
    "SBERT_FEATURES",
    "Feature",
    "Similarity",
    "classification",
    "contrastive_tension",
    "cosine_regression",
    "cosines",
    "embedding_distillation",
    "enqueue",
    "info_nce",
    "jensen_shannon",
    "mask_tokens",
    "masked_lm",
    "moco",
    "moving_average",
    "nt_xent",
    "pair_features",
    "pser",
    "quick_thoughts",
    "random_queue",
    "sampled_word_prediction",
    "score_regression",
    "similarity_distillation",
    "symmetric_divergence",
    "triplet",
    "word_prediction",
]
