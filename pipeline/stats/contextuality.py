"""Contextuality of word vectors, layer by layer (Ethayarajh 2019).

Self-similarity, intra-sentence similarity and maximum explainable variance, each with the value that random
words of the same layer give. Only the states of chosen occurrences are kept while the states of all texts
stream by.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.stats.geometry import Metric, anisotropy, cosines, unit_rows
from pipeline.stats.occurrences import Occurrences, Tokenized

KEPT_BYTES = 256 << 20  # limit of the states in memory: words whose states exceed it are not examined


@dataclass(frozen=True, eq=False)
class States:
    """Hidden states of some texts.

    Attributes:
        rows: (b,) indices of the texts.
        layers: H[0] to H[n], each (tokens of those texts, d) float32, text after text.
    """

    rows: np.ndarray
    layers: tuple[np.ndarray, ...]


class LayerStates:
    """Accumulated states of one layer.

    Attributes:
        kept: (m, d) states of the kept occurrences.
        means: (n, d) mean state of all tokens of each text, special tokens included, as in mean pooling.
        similarity: sum of the intra-sentence similarities.
        sentences: number of texts in that sum.
    """

    def __init__(self, occurrences: int, texts: int, width: int) -> None:
        self.kept = np.zeros((occurrences, width), np.float32)
        self.means = np.zeros((texts, width), np.float32)
        self.similarity, self.sentences = 0.0, 0


def intra_similarity(x: np.ndarray) -> float:
    """Mean cosine of a sentence's word vectors x (n, d) with their mean (Ethayarajh 2019, definition 2)."""
    return float(cosines(x, np.broadcast_to(np.mean(x, axis=0, dtype=np.float64), x.shape)).mean())


def explained_variance(x: np.ndarray, *, centred: bool = True) -> float:
    """Proportion of the variance of occurrences x (n, d) along one direction: sigma_1^2 / sum of sigma_i^2.

    Returns 1 if all occurrences are equal. Ethayarajh 2019, definition 3, prints the form without centring,
    which has the mean cosine as a lower bound; the published values come from the centred form.
    """
    x = np.asarray(x, dtype=np.float64)
    x = x - x.mean(axis=0) if centred else x
    energy = np.linalg.eigvalsh(x @ x.T if len(x) <= x.shape[1] else x.T @ x)
    whole = float(energy.sum())
    return float(energy[-1] / whole) if whole > 0 else 1.0


def gather_states(batches: Iterable[States], tokens: Tokenized, chosen: Occurrences) -> list[LayerStates]:
    """Accumulate the states of every layer, 0 to n, from batches.

    The size of the batches matters for rounding only.
    """
    layers: list[LayerStates] = []
    for batch in batches:
        if not layers:
            layers = [
                LayerStates(len(chosen.kept), len(tokens.offsets) - 1, states.shape[1])
                for states in batch.layers
            ]
        located = _Batch.of(batch.rows, tokens, chosen)
        for layer, states in zip(layers, batch.layers, strict=True):
            located.add(layer, states)
    return layers


def layer_metrics(
    layer: LayerStates, chosen: Occurrences, seed: int, *, centred: bool = True
) -> dict[str, Metric]:
    """Compute raw, baseline and adjusted (raw - baseline) metrics of one layer.

    Metrics without data are omitted.
    """
    kept, found = layer.kept, dict[str, Metric]()
    if len(chosen.pairs):
        left, right = kept[chosen.pairs.T]
        found["word_cosine"] = Metric(
            value=float(cosines(left, right).mean()), count=len(chosen.pairs), of="pairs", seed=seed
        )
    if chosen.words:
        values = {
            # Ethayarajh 2019, definition 1: the mean cosine of two different occurrences of a word.
            "self_similarity": _mean(anisotropy(kept[word]) for word in chosen.words),
            "explained_variance": _mean(
                explained_variance(kept[word], centred=centred) for word in chosen.words
            ),
            "explained_variance_baseline": _random_variance(kept, chosen, seed, centred),
        }
        found |= {
            name: Metric(value=value, count=len(chosen.words), of="words", seed=seed)
            for name, value in values.items()
        }
    if layer.sentences:
        found["intra_similarity"] = Metric(
            value=layer.similarity / layer.sentences, count=layer.sentences, of="sentences"
        )
    for name, baseline in (
        ("self_similarity", "word_cosine"),
        ("intra_similarity", "word_cosine"),
        ("explained_variance", "explained_variance_baseline"),
    ):
        if name in found and baseline in found:
            found[f"{name}_adjusted"] = found[name].model_copy(
                update={"value": found[name].value - found[baseline].value, "seed": seed}
            )
    return found


def _random_variance(kept: np.ndarray, chosen: Occurrences, seed: int, centred: bool) -> float:
    """Maximum explainable variance of random occurrences of different words, as a baseline.

    One direction explains few points better than many, so each word is compared with as many random
    occurrences as the word has itself.
    """
    rng = np.random.default_rng(seed)
    drawn = (
        rng.choice(chosen.pool, min(len(word), len(chosen.pool)), replace=False) for word in chosen.words
    )
    return _mean(explained_variance(kept[occurrences], centred=centred) for occurrences in drawn)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Rows of the accumulators that the tokens of a batch belong to; the same for all layers.

    Attributes:
        rows: indices of the texts.
        starts: first token of each text within the batch.
        lengths: number of tokens of each text.
        kept: indices into `Occurrences.kept`, and into the batch, of the kept occurrences.
        words: indices in the batch of the words of texts with at least two words; a single word has cosine 1
            with itself in every model.
        counts: number of words of each such text.
    """

    rows: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    kept: tuple[np.ndarray, np.ndarray]
    words: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, tokens: Tokenized, chosen: Occurrences) -> "_Batch":
        """Find the words and the kept occurrences among the tokens of the texts `rows`."""
        lengths = np.diff(tokens.offsets)[rows]
        starts = np.cumsum(lengths) - lengths
        indices = np.arange(lengths.sum()) + np.repeat(tokens.offsets[rows] - starts, lengths)
        nearest = np.minimum(np.searchsorted(chosen.kept, indices), max(len(chosen.kept) - 1, 0))
        kept = np.flatnonzero(chosen.kept[nearest] == indices) if len(chosen.kept) else np.zeros(0, np.int64)
        is_word = tokens.is_word[indices]
        counts = np.add.reduceat(is_word, starts, dtype=np.int64)
        usable = is_word & np.repeat(counts >= 2, lengths)
        return cls(rows, starts, lengths, (nearest[kept], kept), np.flatnonzero(usable), counts[counts >= 2])

    def add(self, layer: LayerStates, states: np.ndarray) -> None:
        """Add the batch's states of one layer to its accumulators."""
        layer.kept[self.kept[0]] = states[self.kept[1]]
        sums = np.add.reduceat(states, self.starts, axis=0, dtype=np.float64)
        layer.means[self.rows] = sums / self.lengths[:, None]
        if not len(self.counts):
            return
        words = states[self.words].astype(np.float64)
        starts = np.cumsum(self.counts) - self.counts
        middle = unit_rows(np.add.reduceat(words, starts, axis=0))
        each = np.einsum("nd,nd->n", unit_rows(words), np.repeat(middle, self.counts, axis=0))
        layer.similarity += float((np.add.reduceat(each, starts) / self.counts).sum())
        layer.sentences += len(self.counts)


def _mean(values: Iterable[float] | Sequence[float]) -> float:
    return float(np.mean(list(values)))
