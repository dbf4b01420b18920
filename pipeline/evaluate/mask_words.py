"""Results of `manta evaluate --mask-words`: the words that encoders predict at the mask of a template."""

from collections.abc import Sequence

import numpy as np

from pipeline.config import Settings
from pipeline.evaluate.similarity import row_similarities
from pipeline.evaluate.sts import correlation
from pipeline.stats.correlation import spearman
from pipeline.store.records.sealed_json import Stored

READINGS = {
    "states": "state of the mask token",
    "denoised_states": "state, de-noised",
    "words": "words",
    "denoised_words": "words, de-noised",
}
"""labels of the vectors that the mask token gives a text, by field of `MaskReadings`"""


class TextWords(Settings):
    """The likeliest words of one text, the likeliest first."""

    text: str
    words: tuple[str, ...]
    denoised: tuple[str, ...]


class MaskWords(Stored):
    """Result for one encoder: the words that it predicts, and the correlations of its readings."""

    space_id: str
    """the encoder's space"""
    template: str | None
    """the template; None if it is in the tokenizer of the encoder's folder"""
    top_k: int
    """number of words whose embeddings are averaged"""
    correlations: dict[str, float]
    """Spearman x100 of the pairs' cosines with human scores, by key of `READINGS`; empty without pairs"""
    texts: tuple[TextWords, ...]
    """texts with their likeliest words"""


class NamedMaskWords(Settings):
    """Result for one encoder; `name` is the first of the candidates that have this encoder."""

    name: str
    words: MaskWords


class MaskWordsReport(Settings):
    """Results of `manta evaluate --mask-words`."""

    pairs: int
    """number of pairs with human scores"""
    pairs_source: str | None
    """where the pairs are from, or None"""
    candidates: tuple[NamedMaskWords, ...]
    """results by encoder"""


def pair_correlation(left: np.ndarray, right: np.ndarray, gold: Sequence[float] | np.ndarray) -> float:
    """Compute Spearman x100 of cosines with human scores; 0 if all cosines are equal.

    Args:
        left: (n, d) vectors of the first sentences.
        right: (n, d) vectors of the second sentences.
        gold: (n,) scores, not all equal.
    """
    return 100 * correlation(spearman, row_similarities("cosine", left, right), np.asarray(gold))
