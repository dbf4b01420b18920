"""How far the vectors of words depend on their sentences, layer by layer (Ethayarajh 2019): self-similarity, intra-sentence similarity, maximum explainable
variance, each beside what random words of the same layer give.

Which occurrences are looked at is chosen from token ids alone, before any forward pass; then only theirs are kept while states stream by.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.stats.geometry import Figure, anisotropy, cosines, unit_rows

KEPT_BYTES = 256 << 20  # states held at once; the words that are looked at are drawn at random up to there


@dataclass(frozen=True, eq=False)
class States:
    """Hidden states of some texts. rows (b,): which texts; layers: H[0] to H[n], each (tokens of those texts, d) float32, text after text."""

    rows: np.ndarray
    layers: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Tokenized:
    """Tokens of n texts: ids (tokens,); offsets (n + 1,), text i has those from offsets[i] to offsets[i + 1]; is_word (tokens,) bool, false for special
    tokens, a prompt's and punctuation.
    """

    ids: np.ndarray
    offsets: np.ndarray
    is_word: np.ndarray

    @property
    def owners(self) -> np.ndarray:
        """(tokens,) the text of each token."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True, eq=False)
class Occurrences:
    """Word occurrences to look at. kept (m,): their places among all tokens, ascending; the rest are places in `kept`."""

    kept: np.ndarray
    words: tuple[np.ndarray, ...]
    """of each chosen word, one occurrence in each of n sentences"""
    pairs: np.ndarray
    """(p, 2) random occurrences in different sentences"""
    pool: np.ndarray
    """(q,) random occurrences of different words, in random order"""


class Layer:
    """What a layer's states add up to while they stream by: the kept occurrences, the sum of intra-sentence similarities, mean states of texts."""

    def __init__(self, kept: int, texts: int, width: int) -> None:
        self.kept = np.zeros((kept, width), np.float32)
        self.means = np.zeros((texts, width), np.float32)
        """(n, d) mean of all of a text's tokens, special ones too, as mean pooling takes it"""
        self.similarity, self.sentences = 0.0, 0


def self_similarity(x: np.ndarray) -> float:
    """Mean cosine of two different occurrences of a word, x (n, d), n >= 2. Ethayarajh 2019, definition 1."""
    return anisotropy(x)


def intra_similarity(x: np.ndarray) -> float:
    """Mean cosine of a sentence's word vectors x (n, d) with their mean. Ethayarajh 2019, definition 2."""
    return float(cosines(x, np.broadcast_to(np.mean(x, axis=0, dtype=np.float64), x.shape)).mean())


def explained_variance(x: np.ndarray, *, centred: bool = True) -> float:
    """Share of the variance of occurrences x (n, d) that one direction explains: sigma_1^2 / sum of sigma_i^2. 1 where they differ in nothing.

    Ethayarajh 2019, definition 3, prints the uncentred form, which mean cosines bound from below; the magnitudes published come from the centred one.
    """
    x = np.asarray(x, dtype=np.float64)
    x = x - x.mean(axis=0) if centred else x
    energy = np.linalg.eigvalsh(x @ x.T if len(x) <= x.shape[1] else x.T @ x)
    whole = float(energy.sum())
    return float(energy[-1] / whole) if whole > 0 else 1.0


def most_occurrences(pairs: int) -> int:
    """How many occurrences have at most so many pairs: 45 for 1,000."""
    return max(2, int((1 + np.sqrt(1 + 8 * pairs)) / 2))


def choose(tokens: Tokenized, *, contexts: int, pairs: int, most: int, seed: int) -> Occurrences:
    """Words in at least `contexts` texts, one occurrence a text, as many as have `pairs` pairs; and random occurrences for the baselines.

    most: occurrences of words in all; beyond, words are left out at random. A word is a token: pieces of words count as such.
    """
    rng = np.random.default_rng(seed)
    places = rng.permutation(np.flatnonzero(tokens.is_word))
    words = _words_in(places, tokens, contexts, most_occurrences(pairs), most, rng)
    drawn = _pairs_of(np.sort(places), tokens.owners, pairs, rng)
    pool = places[
        np.unique(tokens.ids[places], return_index=True)[1]
    ]  # the first of each word in random order
    pool = rng.permutation(pool)[:pairs]
    kept = np.unique(np.concatenate([*words, drawn.ravel(), pool]).astype(np.int64))
    return Occurrences(
        kept,
        tuple(np.searchsorted(kept, word) for word in words),
        np.searchsorted(kept, drawn),
        np.searchsorted(kept, pool),
    )


def gather(batches: Iterable[States], tokens: Tokenized, chosen: Occurrences) -> list[Layer]:
    """What later figures need of every layer, 0 to n, from states that stream by: equal whatever the batches are, up to rounding in the last digits."""
    layers: list[Layer] = []
    for batch in batches:
        if not layers:
            layers = [
                Layer(len(chosen.kept), len(tokens.offsets) - 1, states.shape[1]) for states in batch.layers
            ]
        where = _Batch.of(batch.rows, tokens, chosen)
        for layer, states in zip(layers, batch.layers, strict=True):
            where.add(layer, states)
    return layers


def layer_figures(layer: Layer, chosen: Occurrences, seed: int, *, centred: bool = True) -> dict[str, Figure]:
    """Raw, baseline and adjusted (raw - baseline) figures of one layer; those without material are left out."""
    kept, found = layer.kept, dict[str, Figure]()
    if len(chosen.pairs):
        found["word_cosine"] = _figure(
            float(cosines(kept[chosen.pairs[:, 0]], kept[chosen.pairs[:, 1]]).mean()),
            len(chosen.pairs),
            "pairs",
            seed,
        )
    if chosen.words:
        found["self_similarity"] = _figure(
            _mean(self_similarity(kept[word]) for word in chosen.words), len(chosen.words), "words", seed
        )
        found["explained_variance"] = _figure(
            _mean(explained_variance(kept[word], centred=centred) for word in chosen.words),
            len(chosen.words),
            "words",
            seed,
        )
        found["explained_variance_baseline"] = _figure(
            _random_variance(kept, chosen, seed, centred), len(chosen.words), "words", seed
        )
    if layer.sentences:
        found["intra_similarity"] = _figure(
            layer.similarity / layer.sentences, layer.sentences, "sentences", None
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
    """The baseline of maximum explainable variance: for each word the same figure of as many occurrences of different words. Few points are explained
    by one direction more easily than many, so each word is set against a matrix of its own size.
    """
    rng = np.random.default_rng(seed)
    drawn = (
        rng.choice(chosen.pool, min(len(word), len(chosen.pool)), replace=False) for word in chosen.words
    )
    return _mean(explained_variance(kept[places], centred=centred) for places in drawn)


def _words_in(
    places: np.ndarray, tokens: Tokenized, contexts: int, each: int, most: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Places of the occurrences of each chosen word, one a text: of `places`, in random order, the first."""
    ids, owners = tokens.ids[places].astype(np.int64), tokens.owners[places]
    firsts = np.sort(np.unique(ids * (len(tokens.offsets)) + owners, return_index=True)[1])
    order = np.argsort(ids[firsts], kind="stable")
    groups = np.split(places[firsts][order], np.flatnonzero(np.diff(ids[firsts][order])) + 1)
    frequent = [group[:each] for group in groups if len(group) >= contexts]
    shuffled = [frequent[number] for number in rng.permutation(len(frequent))]
    ends = np.cumsum([len(group) for group in shuffled])
    return shuffled[: int(np.searchsorted(ends, most, side="right"))]


def _pairs_of(places: np.ndarray, owners: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, 2) of the ascending `places`: one at random, and another at random among those of other texts. None where a single text has them all."""
    texts, starts, sizes = np.unique(owners[places], return_index=True, return_counts=True)
    if len(texts) < 2:
        return np.zeros((0, 2), np.int64)
    left = rng.integers(len(places), size=count)
    own = np.searchsorted(texts, owners[places[left]])
    right = np.floor(rng.random(count) * (len(places) - sizes[own])).astype(np.int64)
    right += np.where(right >= starts[own], sizes[own], 0)  # past the tokens of the same text
    return np.stack([places[left], places[right]], axis=1)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Where the tokens of a batch go, the same for all layers."""

    rows: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    kept: tuple[np.ndarray, np.ndarray]
    """places in `Occurrences.kept`, places in the batch"""
    words: np.ndarray
    """places in the batch of the words of texts that have two or more: one word alone has cosine 1 with itself in every model"""
    counts: np.ndarray
    """how many of `words` each such text has"""

    @classmethod
    def of(cls, rows: np.ndarray, tokens: Tokenized, chosen: Occurrences) -> "_Batch":
        lengths = np.diff(tokens.offsets)[rows]
        starts = np.cumsum(lengths) - lengths
        places = np.arange(lengths.sum()) + np.repeat(tokens.offsets[rows] - starts, lengths)
        slots = np.minimum(np.searchsorted(chosen.kept, places), max(len(chosen.kept) - 1, 0))
        held = np.flatnonzero(chosen.kept[slots] == places) if len(chosen.kept) else np.zeros(0, np.int64)
        is_word = tokens.is_word[places]
        counts = np.add.reduceat(is_word, starts, dtype=np.int64)
        usable = is_word & np.repeat(counts >= 2, lengths)
        return cls(rows, starts, lengths, (slots[held], held), np.flatnonzero(usable), counts[counts >= 2])

    def add(self, layer: Layer, states: np.ndarray) -> None:
        layer.kept[self.kept[0]] = states[self.kept[1]]
        layer.means[self.rows] = (
            np.add.reduceat(states, self.starts, axis=0, dtype=np.float64) / self.lengths[:, None]
        )
        if not len(self.counts):
            return
        words = states[self.words].astype(np.float64)
        starts = np.cumsum(self.counts) - self.counts
        middle = unit_rows(np.add.reduceat(words, starts, axis=0))
        each = np.einsum("nd,nd->n", unit_rows(words), np.repeat(middle, self.counts, axis=0))
        layer.similarity += float((np.add.reduceat(each, starts) / self.counts).sum())
        layer.sentences += len(self.counts)


def _figure(value: float, count: int, of: str, seed: int | None) -> Figure:
    return Figure(value=value, count=count, of=of, seed=seed)


def _mean(values: Iterable[float] | Sequence[float]) -> float:
    return float(np.mean(list(values)))
