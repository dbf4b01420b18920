"""Contextuality of word vectors, layer by layer (Ethayarajh 2019).

The metrics are self-similarity, intra-sentence similarity and maximum explainable variance, each with its
baseline: the value for random words of the same layer. The states of all texts are read as a stream; only
the states of the chosen word occurrences are held in memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.stats.geometry import Metric, anisotropy, cosines, unit_rows
from pipeline.stats.occurrences import Occurrences, Tokenized

Mev = Literal["literal", "published", "centred"]
"""Definitions of the maximum explainable variance; see `explained_variance`."""
_ROUNDING = 1e-20  # variance of equal vectors, relative to their squared length
MAX_STATE_BYTES = 256 << 20  # memory for the states of the chosen occurrences, over all layers


@dataclass(frozen=True, eq=False)
class States:
    """Hidden states of a batch of texts."""

    rows: np.ndarray
    """(b,) indices of the batch's texts among all texts"""
    layers: tuple[np.ndarray, ...]
    """H[0] to H[n], each (tokens of those texts, d) float32, text after text"""


class LayerStates:
    """Accumulated states of one layer.

    Attributes:
        occurrences: (m, d) states of the chosen occurrences.
        means: (n, d) mean state of all tokens of each text, special tokens included, as in mean pooling.
        similarity_sum: sum of the intra-sentence similarities.
        sentence_count: number of texts in that sum.
    """

    def __init__(self, occurrence_count: int, text_count: int, width: int) -> None:
        self.occurrences = np.zeros((occurrence_count, width), np.float32)
        self.means = np.zeros((text_count, width), np.float32)
        self.similarity_sum = 0.0
        self.sentence_count = 0


def intra_similarity(x: np.ndarray) -> float:
    """Mean cosine of a sentence's word vectors x (n, d) with their mean (Ethayarajh 2019, definition 2)."""
    return float(cosines(x, np.broadcast_to(np.mean(x, axis=0, dtype=np.float64), x.shape)).mean())


def explained_variance(x: np.ndarray, mev: Mev = "literal") -> float:
    """Proportion of the variance of occurrences x (n, d) along one direction (Ethayarajh 2019, definition 3).

    It is 1 if all occurrences are equal.

    Args:
        x: vectors of the occurrences of a word.
        mev: "literal" is the printed formula, sigma_1^2 / sum of sigma_i^2, with the singular values of x,
            not centred; it is high if all cosines are high. "published" is the value of the authors'
            program: the variance of x v divided by the variance of x, both about the mean, where v is the
            first right singular vector of x, not centred. "centred" is the printed formula for x minus its
            mean; it is never below 1 / (n - 1).
    """
    x = np.asarray(x, dtype=np.float64)
    centred = x - x.mean(axis=0)
    variance, length = float(np.square(centred).sum()), float(np.square(x).sum())
    if length == 0 or (mev != "literal" and variance <= _ROUNDING * length):
        return 1.0
    if mev == "published":
        direction = _first_direction(x)
        return float(np.square(centred @ direction).sum()) / variance
    x, total = (centred, variance) if mev == "centred" else (x, length)
    return float(np.linalg.eigvalsh(_smaller_gram(x))[-1]) / total


def _first_direction(x: np.ndarray) -> np.ndarray:
    """Return the first right singular vector of x (n, d): (d,)."""
    vector = np.linalg.eigh(_smaller_gram(x))[1][:, -1]
    direction = vector @ x if len(x) <= x.shape[1] else vector
    return np.asarray(direction / np.linalg.norm(direction))


def static_vector(x: np.ndarray) -> np.ndarray:
    """First right singular vector of occurrences x (n, d), not centred: (d,), of length 1.

    It is the static vector of a word (Ethayarajh 2019, section 4.4). Its sign is such that the mean inner
    product with the occurrences is not negative. The vector is zero if all occurrences are zero.
    """
    x = np.asarray(x, dtype=np.float64)
    if not x.any():
        return np.zeros(x.shape[1])
    direction = _first_direction(x)
    return -direction if (x @ direction).mean() < 0 else direction


def _smaller_gram(x: np.ndarray) -> np.ndarray:
    """Return x x' or x' x, whichever is smaller; both have the squared singular values of x (n, d)."""
    return x @ x.T if len(x) <= x.shape[1] else x.T @ x


def gather_states(batches: Iterable[States], tokens: Tokenized, chosen: Occurrences) -> list[LayerStates]:
    """Accumulate the states of every layer, 0 to n, from batches.

    The sizes of the batches change the result by rounding errors only.
    """
    layers: list[LayerStates] = []
    for batch in batches:
        if not layers:
            layers = [
                LayerStates(len(chosen.token_indices), len(tokens.offsets) - 1, states.shape[1])
                for states in batch.layers
            ]
        positions = _BatchPositions.of(batch.rows, tokens, chosen)
        for layer, states in zip(layers, batch.layers, strict=True):
            positions.accumulate(layer, states)
    return layers


def layer_metrics(
    layer: LayerStates, chosen: Occurrences, seed: int, *, mev: Mev = "literal"
) -> dict[str, Metric]:
    """Compute raw, baseline and adjusted (raw - baseline) metrics of one layer.

    Metrics without data are omitted.
    """
    states, metrics = layer.occurrences, dict[str, Metric]()
    if len(chosen.pairs):
        left, right = states[chosen.pairs.T]
        metrics["word_cosine"] = Metric(
            value=float(cosines(left, right).mean()), count=len(chosen.pairs), of="pairs", seed=seed
        )
    if chosen.words:
        metrics |= _word_metrics(states, chosen, seed, mev)
    if layer.sentence_count:
        metrics["intra_similarity"] = Metric(
            value=layer.similarity_sum / layer.sentence_count, count=layer.sentence_count, of="sentences"
        )
    for name, baseline in (
        ("self_similarity", "word_cosine"),
        ("intra_similarity", "word_cosine"),
        ("explained_variance", "explained_variance_baseline"),
    ):
        if name in metrics and baseline in metrics:
            metrics[f"{name}_adjusted"] = metrics[name].model_copy(
                update={"value": metrics[name].value - metrics[baseline].value, "seed": seed}
            )
    return metrics


def self_similarities(states: np.ndarray, chosen: Occurrences) -> list[float]:
    """Mean cosine of two different occurrences of each chosen word (Ethayarajh 2019, definition 1).

    Args:
        states: (m, d) states of the chosen occurrences.
        chosen: the first `chosen.compared` occurrences of each word are compared.
    """
    return [anisotropy(states[word[: chosen.compared]]) for word in chosen.words]


def _word_metrics(states: np.ndarray, chosen: Occurrences, seed: int, mev: Mev) -> dict[str, Metric]:
    """Compute the means over the chosen words, and the baseline of their explained variance.

    The self-similarity compares some occurrences of a word in pairs; the explained variance uses all of them.
    """
    values = {
        "self_similarity": self_similarities(states, chosen),
        "explained_variance": [explained_variance(states[word], mev) for word in chosen.words],
    }
    baseline = explained_variance(states[chosen.random], mev)
    return {
        name: Metric(value=float(np.mean(of_words)), count=len(of_words), of="words", seed=seed)
        for name, of_words in values.items()
    } | {
        "explained_variance_baseline": Metric(
            value=baseline, count=len(chosen.random), of="random words", seed=seed
        )
    }


@dataclass(frozen=True, eq=False)
class _BatchPositions:
    """Positions of words and chosen occurrences within a batch of texts; the same for all layers.

    Only texts with at least two words have an intra-sentence similarity: a single word has cosine 1 with
    itself in every model.
    """

    rows: np.ndarray
    """indices of the batch's texts among all texts"""
    starts: np.ndarray
    """first token of each text within the batch"""
    lengths: np.ndarray
    """number of tokens of each text"""
    occurrences: np.ndarray
    """indices into `Occurrences.token_indices` of the chosen occurrences in this batch"""
    occurrence_tokens: np.ndarray
    """position in the batch of each of these occurrences"""
    words: np.ndarray
    """positions in the batch of the words of texts with at least two words"""
    word_counts: np.ndarray
    """number of words of each such text"""

    @classmethod
    def of(cls, rows: np.ndarray, tokens: Tokenized, chosen: Occurrences) -> "_BatchPositions":
        """Find the words and the chosen occurrences among the tokens of the texts `rows`."""
        lengths = np.diff(tokens.offsets)[rows]
        starts = np.cumsum(lengths) - lengths
        token_indices = np.arange(lengths.sum()) + np.repeat(tokens.offsets[rows] - starts, lengths)
        is_chosen = np.isin(token_indices, chosen.token_indices)
        is_word = tokens.is_word[token_indices]
        word_counts = np.add.reduceat(is_word, starts, dtype=np.int64)
        return cls(
            rows=rows,
            starts=starts,
            lengths=lengths,
            occurrences=np.searchsorted(chosen.token_indices, token_indices[is_chosen]),
            occurrence_tokens=np.flatnonzero(is_chosen),
            words=np.flatnonzero(is_word & np.repeat(word_counts >= 2, lengths)),
            word_counts=word_counts[word_counts >= 2],
        )

    def accumulate(self, layer: LayerStates, states: np.ndarray) -> None:
        """Add this batch's states (tokens of the batch, d) to one layer's accumulators."""
        layer.occurrences[self.occurrences] = states[self.occurrence_tokens]
        sums = np.add.reduceat(states, self.starts, axis=0, dtype=np.float64)
        layer.means[self.rows] = sums / self.lengths[:, None]
        if not len(self.word_counts):
            return
        words = states[self.words].astype(np.float64)
        starts = np.cumsum(self.word_counts) - self.word_counts
        mean_directions = unit_rows(np.add.reduceat(words, starts, axis=0))
        word_cosines = np.einsum(
            "nd,nd->n", unit_rows(words), np.repeat(mean_directions, self.word_counts, axis=0)
        )
        similarities = np.add.reduceat(word_cosines, starts) / self.word_counts
        layer.similarity_sum += float(similarities.sum())
        layer.sentence_count += len(similarities)
