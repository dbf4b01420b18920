"""Geometry of the vectors of one encoder and transform: metrics, spectrum and distributions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pydantic import Field
from scipy.stats import rankdata

from pipeline.config import Settings
from pipeline.errors import DataError
from pipeline.stats.frequency import by_frequency
from pipeline.stats.geometry import (
    Metric,
    alignment,
    anisotropy,
    cosines,
    participation_ratio,
    uniformity,
    unit_rows,
)
from pipeline.stats.lexical import EditUnit, edit_distances, neighbour_distances, rank_correlation
from pipeline.stats.sample import PAIRS, Histogram, cosine_histogram, random_pairs, singular_spectrum

_BLOCK = 512  # rows per block of similarities
_MAX_SIMILARITIES = 1 << 23  # per block: 64 MB of float64


@dataclass(frozen=True, eq=False)
class Hubness:
    """k-occurrence of each vector: the number of other vectors that have it among their k nearest."""

    counts: np.ndarray
    """(n,) k-occurrence of every vector; the mean is k"""

    @property
    def skewness(self) -> float:
        """Third standardized moment of the counts: 0 if symmetric, above 1 if there are a few large hubs.

        Source: Radovanovic et al. 2010, eq. 1.
        """
        deviations = self.counts - self.counts.mean()
        spread = np.sqrt((deviations**2).mean())
        return float((deviations**3).mean() / spread**3) if spread > 0 else 0.0

    @property
    def largest_proportion(self) -> float:
        """Proportion of the other vectors that have the largest hub among their k nearest."""
        return float(self.counts.max() / (len(self.counts) - 1))

    @property
    def antihub_proportion(self) -> float:
        """Proportion of the vectors that are among the k nearest of no other vector."""
        return float((self.counts == 0).mean())


def hubness(x: np.ndarray, k: int) -> Hubness:
    """Count the k-occurrences of the rows of x (n, d) by cosine, excluding each row itself.

    Raises:
        DataError: unless n > k.
    """
    if len(x) <= k:
        raise DataError(
            "hubness",
            f"more than {k} vectors",
            str(len(x)),
            "use more text, or lower evaluate.geometry.neighbours",
        )
    return Hubness(np.bincount(nearest_rows(unit_rows(x), k).ravel(), minlength=len(x)))


def nearest_rows(x: np.ndarray, k: int) -> np.ndarray:
    """Return (n, k) indices of the k rows with the largest inner product with each row of x (n, d).

    A row is not its own neighbour; the k indices of a row are in no particular order.
    """
    blocks, block_rows = [], max(1, min(_BLOCK, _MAX_SIMILARITIES // max(len(x), 1)))
    for start in range(0, len(x), block_rows):
        products = x[start : start + block_rows] @ x.T
        np.fill_diagonal(products[:, start:], -np.inf)  # excludes each row itself
        blocks.append(np.argpartition(-products, k - 1, axis=1)[:, :k])
    return np.concatenate(blocks)


BANDS = 5  # bands of gold scores: 0 to 1, 1 to 2 ... 4 to 5
POSITIVE = 4.0  # pairs with a higher score count as equal in meaning (Gao et al. 2021, SimCSE)
_BAND_BINS = 40  # bins of cosines, 0.05 wide
_EDIT_BINS = 10  # bins of edit distances, with equal numbers of pairs


class EditBin(Settings):
    """Mean ranks of pairs with similar edit distance, by cosine and by gold score.

    A rank correlation uses the same ranks. Encoders can be compared by them even if their cosines spread
    differently.
    """

    distance: float
    """median edit distance"""
    cosine_rank: float = Field(alias="similarity")
    """mean rank of the cosines among all pairs, divided by their number: 1 for the highest"""
    gold_rank: float = Field(alias="gold")
    """mean rank of the gold scores among all pairs, divided by their number"""
    pairs: int
    """number of pairs"""


class MeasuredMetrics(NamedTuple):
    """Metrics by name, and by name the reasons why other metrics could not be measured."""

    metrics: dict[str, Metric]
    missing: dict[str, str]

    @classmethod
    def of(cls, **results: tuple[Metric | None, str]) -> "MeasuredMetrics":
        """Split results, each a metric and the reason to give if it is None."""
        metrics = {name: metric for name, (metric, _) in results.items() if metric}
        missing = {name: reason for name, (_, reason) in results.items() if name not in metrics}
        return cls(metrics, missing)


class Space(Settings):
    """Geometry of the sentence vectors of one space."""

    dim: int
    metrics: dict[str, Metric] = Field(alias="figures")
    spectrum: tuple[float, ...]
    """singular values of the sentence vectors, not centred, divided by the largest, in descending order"""
    spectrum_centred: tuple[float, ...]
    cosines: Histogram
    """cosines of random pairs of sentences"""
    hub_counts: tuple[int, ...] = Field((), alias="found")
    """entry i: number of sentences that are among the k nearest neighbours of exactly i other sentences"""
    bands: tuple[Histogram, ...] = ()
    """cosines of the pairs with gold scores 0 to 1, 1 to 2 ... 4 to 5"""
    edits: tuple[EditBin, ...] = ()
    missing: dict[str, str] = {}
    """name of a metric -> reason why it could not be measured"""


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """Pairs of sentences with similarity scores given by people, from 0 to 5."""

    left: tuple[str, ...]
    """n sentences"""
    right: tuple[str, ...]
    """n sentences"""
    gold: np.ndarray
    """(n,) scores"""
    edits: np.ndarray
    """(n,) edit distances"""

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
    spectrum, spectrum_centred = singular_spectrum(x), singular_spectrum(x, centred=True)
    missing = dict[str, str]()
    metrics = {
        "anisotropy": Metric(value=anisotropy(x), count=len(x), of="sentences"),
        "uniformity": uniformity(x, seed),
        "participation_ratio": Metric(value=participation_ratio(spectrum), count=len(x), of="sentences"),
        "participation_ratio_centred": Metric(
            value=participation_ratio(spectrum_centred), count=len(x), of="sentences"
        ),
    }
    hub_counts: tuple[int, ...] = ()
    if len(x) > neighbours:
        hubs = hubness(x, neighbours)
        metrics |= {
            name: Metric(value=value, count=len(x), of="sentences")
            for name, value in (
                ("hub_skewness", hubs.skewness),
                ("largest_hub", hubs.largest_proportion),
                ("antihubs", hubs.antihub_proportion),
            )
        }
        hub_counts = tuple(np.bincount(hubs.counts).tolist())
    else:
        missing["hubness"] = f"needs more than {neighbours} sentences, there are {len(x)}"
    lengths = length_metrics(x, texts, seed)
    return Space(
        dim=x.shape[1],
        metrics=metrics | lengths.metrics,
        spectrum=tuple(spectrum.tolist()),
        spectrum_centred=tuple(spectrum_centred.tolist()),
        cosines=cosine_histogram(x, seed=seed),
        hub_counts=hub_counts,
        missing=missing | lengths.missing,
    )


def with_pairs(space: Space, sentences: np.ndarray, pairs: ScoredPairs, seed: int) -> Space:
    """Add the metrics of scored pairs to a space.

    Args:
        space: geometry of the sentence vectors.
        sentences: (m, d) vectors of `pairs.sentences`.
        pairs: pairs with gold scores and edit distances.
        seed: seed of the uniformity's sample.
    """
    row_of = {sentence: row for row, sentence in enumerate(pairs.sentences)}
    left, right = (sentences[[row_of[sentence] for sentence in side]] for side in (pairs.left, pairs.right))
    similarity, positive = cosines(left, right), pairs.gold > POSITIVE
    pair_alignment = (
        Metric(value=alignment(left[positive], right[positive]), count=int(positive.sum()), of="pairs")
        if positive.any()
        else None
    )

    def why_undefined(values: np.ndarray) -> str:
        """Return why the rank correlation of the cosines with `values` is undefined, if it is."""
        return "all cosines are equal" if np.ptp(values) else "all pairs have the same value"

    measured = MeasuredMetrics.of(
        pair_uniformity=(uniformity(sentences, seed), ""),
        alignment=(pair_alignment, f"no pair has a score above {POSITIVE:g}"),
        edit_correlation=(rank_correlation(similarity, pairs.edits, "pairs"), why_undefined(pairs.edits)),
        gold_correlation=(rank_correlation(similarity, pairs.gold, "pairs"), why_undefined(pairs.gold)),
    )
    return space.model_copy(
        update={
            "metrics": space.metrics | measured.metrics,
            "missing": space.missing | measured.missing,
            "bands": cosine_bands(similarity, pairs.gold),
            "edits": edit_bins(similarity, pairs),
        }
    )


def length_metrics(x: np.ndarray, texts: Sequence[str], seed: int) -> MeasuredMetrics:
    """Measure how vectors depend on the length (in characters) of their texts.

    Correlates the norm with the length, and the cosine of random pairs with their difference in length.
    """
    lengths = np.array([len(text) for text in texts])
    left, right = random_pairs(len(x), PAIRS, np.random.default_rng(seed))
    difference = np.abs(lengths[left] - lengths[right])
    return MeasuredMetrics.of(
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

    An integer score belongs to the band above it, 5 to the last band.
    """
    band = np.clip(np.floor(gold), 0, BANDS - 1).astype(int)
    edges = np.linspace(-1, 1, _BAND_BINS + 1)
    return tuple(Histogram.of(similarity[band == number], edges) for number in range(BANDS))


def edit_bins(similarity: np.ndarray, pairs: ScoredPairs) -> tuple[EditBin, ...]:
    """Group pairs by edit distance into bins of about the same size."""
    order, count = np.argsort(pairs.edits, kind="stable"), len(pairs.gold)
    cosine_ranks, gold_ranks = rankdata(similarity) / count, rankdata(pairs.gold) / count
    parts = np.array_split(order, min(_EDIT_BINS, count)) if count else []
    return tuple(
        EditBin(
            distance=float(np.median(pairs.edits[part])),
            cosine_rank=float(cosine_ranks[part].mean()),
            gold_rank=float(gold_ranks[part].mean()),
            pairs=len(part),
        )
        for part in parts
    )


def word_metrics(table: np.ndarray, counts: np.ndarray, neighbours: int) -> MeasuredMetrics:
    """Measure how a token table depends on word frequency (Li et al. 2020, BERT-flow).

    Gives the Spearman correlations of the frequency rank (1 is the most frequent) with the norm of a row and
    with its mean distance to the k nearest rows. They are positive if the rows of rare words are longer and
    farther apart.

    Args:
        table: (m, d) rows of m words.
        counts: (m,) number of occurrences of each word.
        neighbours: k, the number of nearest rows.
    """
    if len(counts) <= neighbours:
        reason = f"needs more than {neighbours} words, there are {len(counts)}"
        return MeasuredMetrics({}, {"word_frequency": reason})
    most_frequent = by_frequency(counts)
    rows, rank = table[most_frequent].astype(np.float64), -counts[most_frequent]
    reason = "all words have the same frequency, or all rows the same norm"
    return MeasuredMetrics.of(
        frequency_norm=(rank_correlation(rank, np.linalg.norm(rows, axis=1), "words"), reason),
        frequency_distance=(rank_correlation(rank, neighbour_distances(rows, neighbours), "words"), reason),
        table_anisotropy=(Metric(value=anisotropy(rows), count=len(rows), of="words"), reason),
    )
