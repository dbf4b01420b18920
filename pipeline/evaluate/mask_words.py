"""Words that masked language models predict at the mask of a template: the results of reading by words."""

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
"""readings of the mask token as vectors, by their names in `MaskReadings`"""


class TextWords(Settings):
    """The likeliest words of one text, the likeliest first."""

    text: str
    words: tuple[str, ...]
    denoised: tuple[str, ...]


class MaskWords(Stored):
    """Reading by words with one encoder.

    Attributes:
        space_id: the encoder's space.
        template: the template; None if it is in the tokenizer of the encoder's folder.
        top_k: number of words whose embeddings are averaged.
        correlations: Spearman x100 of the pairs' cosines with human scores, by reading; empty without pairs.
        texts: texts with their likeliest words.
    """

    space_id: str
    template: str | None
    top_k: int
    correlations: dict[str, float]
    texts: tuple[TextWords, ...]


class NamedMaskWords(Settings):
    """Reading by words with the encoder of candidates of that name."""

    name: str
    words: MaskWords


class MaskWordsReport(Settings):
    """Results of `manta evaluate --mask-words`.

    Attributes:
        pairs: number of pairs with human scores.
        pairs_source: where the pairs are from, or None.
        candidates: results by encoder.
    """

    pairs: int
    pairs_source: str | None
    candidates: tuple[NamedMaskWords, ...]


def pair_correlation(left: np.ndarray, right: np.ndarray, gold: Sequence[float] | np.ndarray) -> float:
    """Compute Spearman x100 of cosines with human scores; 0 if all cosines are equal.

    Args:
        left: (n, d) vectors of the first sentences.
        right: (n, d) vectors of the second sentences.
        gold: (n,) scores, not all equal.
    """
    return 100 * correlation(spearman, row_similarities("cosine", left, right), np.asarray(gold))
