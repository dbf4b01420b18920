"""Geometry of one space: metrics, spectrum and distributions of sentence vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from pipeline.config import Settings
from pipeline.stats.geometry import Metric, alignment, anisotropy, cosines, participation_ratio, uniformity
from pipeline.stats.hubness import hubness
from pipeline.stats.lexical import EditUnit, edit_distances, neighbour_distances, rank_correlation
from pipeline.stats.sample import PAIRS, Histogram, cosine_histogram, singular_spectrum

BANDS = 5  # of gold scores: 0 to 1, 1 to 2 ... 4 to 5
POSITIVE = 4.0  # pairs with a higher score count as equal in meaning (Gao et al. 2021, SimCSE)
_BAND_BINS = 40  # 0.05 each
_EDIT_BINS = 10  # with equal numbers of pairs
_MOST_WORDS = 10_000  # most frequent words only: distances need quadratic time


class EditBin(Settings):
    """Pairs of similar edit distance.

    Ranks make encoders with different spreads of cosines comparable, and are what the correlation is computed
    from.

    Attributes:
        distance: median edit distance.
        similarity: mean rank of the cosines among all pairs, divided by their number: 1 for the highest.
        gold: the same for the gold scores.
        pairs: number of pairs.
    """

    distance: float
    similarity: float
    gold: float
    pairs: int


class Space(Settings):
    """Geometry of the sentence vectors of one space."""

    dim: int
    figures: dict[str, Metric]
    spectrum: tuple[float, ...]
    """singular values of the sentence vectors, not centred, divided by the largest, in descending order"""
    spectrum_centred: tuple[float, ...]
    cosines: Histogram
    """cosines of random pairs of sentences"""
    found: tuple[int, ...] = ()
    """number of sentences that are 0, 1, 2 ... times among the k nearest of others"""
    bands: tuple[Histogram, ...] = ()
    """cosines of the pairs with gold scores 0 to 1, 1 to 2 ... 4 to 5"""
    edits: tuple[EditBin, ...] = ()
    missing: dict[str, str] = {}
    """reason why a metric could not be measured, by name"""


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """Pairs of sentences with similarity scores by people, from 0 to 5.

    Attributes:
        left: n sentences.
        right: n sentences.
        gold: (n,) scores.
        edits: (n,) edit distances.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    gold: np.ndarray
    edits: np.ndarray

    @classmethod
    def of(cls, left: Sequence[str], right: Sequence[str], gold: np.ndarray, unit: EditUnit) -> "ScoredPairs":
        """Create the pairs, with their edit distances."""
        gold = np.asarray(gold, dtype=np.float64)
        return cls(tuple(left), tuple(right), gold, edit_distances(left, right, unit))

    @property
    def sentences(self) -> list[str]:
        """Distinct sentences, in order of first occurrence."""
        return list(dict.fromkeys((*self.left, *self.right)))


def sentence_space(x: np.ndarray, texts: Sequence[str], neighbours: int, seed: int) -> Space:
    """Measure the geometry of the vectors x (n, d) of n different texts, n >= 2."""
    spectrum, missing = singular_spectrum(x), dict[str, str]()
    figures = {
        "anisotropy": Metric(value=anisotropy(x), count=len(x), of="sentences"),
        "uniformity": uniformity(x, seed),
        "participation_ratio": Metric(value=participation_ratio(spectrum), count=len(x), of="sentences"),
        "participation_ratio_centred": Metric(
            value=participation_ratio(singular_spectrum(x, centred=True)), count=len(x), of="sentences"
        ),
    }
    found: tuple[int, ...] = ()
    if len(x) > neighbours:
        hubs = hubness(x, neighbours)
        figures |= {
            name: Metric(value=value, count=len(x), of="sentences")
            for name, value in (
                ("hub_skewness", hubs.skewness),
                ("largest_hub", hubs.largest_proportion),
                ("antihubs", hubs.antihub_proportion),
            )
        }
        found = tuple(np.bincount(hubs.counts).tolist())
    else:
        missing["hubness"] = f"needs more than {neighbours} sentences, there are {len(x)}"
    lengths, unmeasured = length_metrics(x, texts, seed)
    return Space(
        dim=x.shape[1],
        figures=figures | lengths,
        spectrum=tuple(spectrum.tolist()),
        spectrum_centred=tuple(singular_spectrum(x, centred=True).tolist()),
        cosines=cosine_histogram(x, seed=seed),
        found=found,
        missing=missing | unmeasured,
    )


def with_pairs(space: Space, sentences: np.ndarray, pairs: ScoredPairs, seed: int) -> Space:
    """Add the metrics of scored pairs to a space.

    Args:
        space: geometry without pairs.
        sentences: (m, d) vectors of `pairs.sentences`.
        pairs: the scored pairs.
        seed: of sampled pairs.
    """
    row = {sentence: number for number, sentence in enumerate(pairs.sentences)}
    left, right = (sentences[[row[sentence] for sentence in side]] for side in (pairs.left, pairs.right))
    similarity, positive = cosines(left, right), pairs.gold > POSITIVE
    aligned = (
        Metric(value=alignment(left[positive], right[positive]), count=int(positive.sum()), of="pairs")
        if positive.any()
        else None
    )
    why = [
        "all cosines are equal" if np.ptp(other) else "all pairs have the same value"
        for other in (pairs.edits, pairs.gold)
    ]
    figures, missing = _measured(
        pair_uniformity=(uniformity(sentences, seed), ""),
        alignment=(aligned, f"no pair has a score above {POSITIVE:g}"),
        edit_correlation=(rank_correlation(similarity, pairs.edits, "pairs"), why[0]),
        gold_correlation=(rank_correlation(similarity, pairs.gold, "pairs"), why[1]),
    )
    return space.model_copy(
        update={
            "figures": space.figures | figures,
            "missing": space.missing | missing,
            "bands": cosine_bands(similarity, pairs.gold),
            "edits": edit_bins(similarity, pairs),
        }
    )


def length_metrics(
    x: np.ndarray, texts: Sequence[str], seed: int
) -> tuple[dict[str, Metric], dict[str, str]]:
    """Measure how vectors depend on the length (in characters) of their texts.

    Correlates the norm with the length, and the cosine of random pairs with their difference in length.

    Returns:
        Metrics by name, and reasons for those that could not be measured.
    """
    lengths, rng = np.array([len(text) for text in texts]), np.random.default_rng(seed)
    left = rng.integers(len(x), size=PAIRS)
    right = (left + rng.integers(1, len(x), size=PAIRS)) % len(x)
    difference = np.abs(lengths[left] - lengths[right])
    return _measured(
        length_cosine=(
            rank_correlation(cosines(x[left], x[right]), difference, "pairs", seed),
            "all texts have the same length, or all cosines are equal",
        ),
        length_norm=(
            rank_correlation(np.linalg.norm(x.astype(np.float64), axis=1), lengths, "sentences"),
            "all vectors have the same norm",
        ),
    )


def cosine_bands(similarity: np.ndarray, gold: np.ndarray) -> tuple[Histogram, ...]:
    """Return one histogram of the cosines (n,) per band of gold scores.

    An integer score starts a band, 5 is in the last.
    """
    band = np.clip(np.floor(gold), 0, BANDS - 1).astype(int)
    edges = np.linspace(-1, 1, _BAND_BINS + 1)
    return tuple(Histogram.of(similarity[band == number], edges) for number in range(BANDS))


def edit_bins(similarity: np.ndarray, pairs: ScoredPairs) -> tuple[EditBin, ...]:
    """Group pairs by edit distance into bins of about equal numbers."""
    order, count = np.argsort(pairs.edits, kind="stable"), len(pairs.gold)
    ranks, gold = rankdata(similarity) / count, rankdata(pairs.gold) / count
    parts = np.array_split(order, min(_EDIT_BINS, count)) if count else []
    return tuple(
        EditBin(
            distance=float(np.median(pairs.edits[part])),
            similarity=float(ranks[part].mean()),
            gold=float(gold[part].mean()),
            pairs=len(part),
        )
        for part in parts
    )


def word_metrics(
    table: np.ndarray, counts: np.ndarray, neighbours: int
) -> tuple[dict[str, Metric], dict[str, str]]:
    """Measure how a token table depends on word frequency (Li et al. 2020, BERT-flow).

    Spearman correlation of the frequency rank (1 is the most frequent) with the row's norm and with its mean
    distance to the k nearest rows. If positive, rare words lie farther out, and more sparsely.

    Args:
        table: (m, d) rows of m words.
        counts: (m,) number of occurrences of each word.
        neighbours: k.

    Returns:
        Metrics by name, and reasons for those that could not be measured.
    """
    if len(counts) <= neighbours:
        return {}, {"word_frequency": f"needs more than {neighbours} words, there are {len(counts)}"}
    most = np.argsort(-counts, kind="stable")[:_MOST_WORDS]
    rows, rank = table[most].astype(np.float64), -counts[most]
    why = "all words have the same frequency, or all rows the same norm"
    return _measured(
        frequency_norm=(rank_correlation(rank, np.linalg.norm(rows, axis=1), "words"), why),
        frequency_distance=(rank_correlation(rank, neighbour_distances(rows, neighbours), "words"), why),
        table_anisotropy=(Metric(value=anisotropy(rows), count=len(rows), of="words"), why),
    )


def _measured(**made: tuple[Metric | None, str]) -> tuple[dict[str, Metric], dict[str, str]]:
    """Split (metric, reason if it is None) by name into metrics and reasons."""
    found = {name: metric for name, (metric, _) in made.items() if metric}
    return found, {name: why for name, (_, why) in made.items() if name not in found}
