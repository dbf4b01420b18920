"""The geometry of one space: figures, spectrum and distributions of sentence vectors, with pairs of known similarity and without."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from pipeline.config import Settings
from pipeline.stats.geometry import Figure, alignment, anisotropy, cosines, participation_ratio, uniformity
from pipeline.stats.hubness import hubness
from pipeline.stats.lexical import EditUnit, edit_distances, neighbour_distances, rank_correlation
from pipeline.stats.sample import PAIRS, Histogram, cosine_histogram, singular_spectrum

BANDS = 5  # gold scores 0 to 1, 1 to 2 ... 4 to 5
POSITIVE = 4.0  # pairs above it mean the same (Gao et al. 2021, SimCSE)
_BAND_BINS = 40  # 0.05 each
_EDIT_BINS = 10  # equally many pairs in each
_MOST_WORDS = 10_000  # rarer ones are left out: their distances cost the square


class EditBin(Settings):
    """Pairs of similar edit distance. distance: the median of theirs; similarity, gold: mean rank of their cosines and of their gold scores among all pairs, as
    a share: 1 for the highest. Ranks compare encoders whose cosines spread differently, and are what the correlation is made of.
    """

    distance: float
    similarity: float
    gold: float
    pairs: int


class Space(Settings):
    """Sentence vectors of one space."""

    dim: int
    figures: dict[str, Figure]
    spectrum: tuple[float, ...]
    """singular values of the sentences, largest first, as shares of the largest; not centred"""
    spectrum_centred: tuple[float, ...]
    cosines: Histogram
    """of random pairs of sentences"""
    found: tuple[int, ...] = ()
    """how many sentences stand 0, 1, 2 ... times among the k nearest of others"""
    bands: tuple[Histogram, ...] = ()
    """cosines of the pairs with gold scores 0 to 1, 1 to 2 ... 4 to 5"""
    edits: tuple[EditBin, ...] = ()
    missing: dict[str, str] = {}
    """what could not be measured, and why"""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of sentences with the similarity that people gave them, 0 to 5. edits (n,): edit distance of each pair."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    gold: np.ndarray
    edits: np.ndarray

    @classmethod
    def of(cls, left: Sequence[str], right: Sequence[str], gold: np.ndarray, unit: EditUnit) -> "Pairs":
        return cls(
            tuple(left), tuple(right), np.asarray(gold, dtype=np.float64), edit_distances(left, right, unit)
        )

    @property
    def sentences(self) -> list[str]:
        """Every sentence once, in order of first sight."""
        return list(dict.fromkeys((*self.left, *self.right)))


def sentence_space(x: np.ndarray, texts: Sequence[str], neighbours: int, seed: int) -> Space:
    """The geometry of the vectors x (n, d) of n different texts, n >= 2."""
    spectrum, missing = singular_spectrum(x), dict[str, str]()
    figures = {
        "anisotropy": Figure(value=anisotropy(x), count=len(x), of="sentences"),
        "uniformity": uniformity(x, seed),
        "participation_ratio": Figure(value=participation_ratio(spectrum), count=len(x), of="sentences"),
        "participation_ratio_centred": Figure(
            value=participation_ratio(singular_spectrum(x, centred=True)), count=len(x), of="sentences"
        ),
    }
    found: tuple[int, ...] = ()
    if len(x) > neighbours:
        hubs = hubness(x, neighbours)
        values = {
            "hub_skewness": hubs.skewness,
            "largest_hub": hubs.largest_share,
            "antihubs": hubs.antihub_share,
        }
        figures |= {name: Figure(value=value, count=len(x), of="sentences") for name, value in values.items()}
        found = tuple(np.bincount(hubs.counts).tolist())
    else:
        missing["hubness"] = f"needs more than {neighbours} sentences, there are {len(x)}"
    lengths, gone = length_figures(x, texts, seed)
    return Space(
        dim=x.shape[1],
        figures=figures | lengths,
        spectrum=tuple(spectrum.tolist()),
        spectrum_centred=tuple(singular_spectrum(x, centred=True).tolist()),
        cosines=cosine_histogram(x, seed=seed),
        found=found,
        missing=missing | gone,
    )


def with_pairs(space: Space, sentences: np.ndarray, pairs: Pairs, seed: int) -> Space:
    """The geometry with what pairs say; sentences (m, d): the vectors of `pairs.sentences`."""
    place = {sentence: number for number, sentence in enumerate(pairs.sentences)}
    left, right = (sentences[[place[sentence] for sentence in side]] for side in (pairs.left, pairs.right))
    similarity, positive = cosines(left, right), pairs.gold > POSITIVE
    figures, missing = {"pair_uniformity": uniformity(sentences, seed)}, dict[str, str]()
    if positive.any():
        figures["alignment"] = Figure(
            value=alignment(left[positive], right[positive]), count=int(positive.sum()), of="pairs"
        )
    else:
        missing["alignment"] = f"no pair has a score above {POSITIVE:g}"
    for name, other in (("edit_correlation", pairs.edits), ("gold_correlation", pairs.gold)):
        if (figure := rank_correlation(similarity, other, "pairs")) is not None:
            figures[name] = figure
        else:
            missing[name] = "all cosines are equal" if np.ptp(other) else "all pairs are alike in it"
    return space.model_copy(
        update={
            "figures": space.figures | figures,
            "missing": space.missing | missing,
            "bands": cosine_bands(similarity, pairs.gold),
            "edits": edit_bins(similarity, pairs),
        }
    )


def length_figures(
    x: np.ndarray, texts: Sequence[str], seed: int
) -> tuple[dict[str, Figure], dict[str, str]]:
    """Do vectors know the length (in characters) of their texts? Norm against length, cosine of random pairs against their difference in length."""
    lengths, rng = np.array([len(text) for text in texts]), np.random.default_rng(seed)
    left = rng.integers(len(x), size=PAIRS)
    right = (left + rng.integers(1, len(x), size=PAIRS)) % len(x)
    difference = np.abs(lengths[left] - lengths[right])
    made = {
        "length_cosine": rank_correlation(cosines(x[left], x[right]), difference, "pairs", seed),
        "length_norm": rank_correlation(np.linalg.norm(x.astype(np.float64), axis=1), lengths, "sentences"),
    }
    why = {
        "length_cosine": "all texts, or all cosines, are alike",
        "length_norm": "all vectors have the same length",
    }
    return {name: figure for name, figure in made.items() if figure}, {
        name: why[name] for name, figure in made.items() if not figure
    }


def cosine_bands(similarity: np.ndarray, gold: np.ndarray) -> tuple[Histogram, ...]:
    """Cosines (n,) of pairs by their gold score, one histogram for each band; a whole score opens a band, 5 closes the last."""
    band = np.clip(np.floor(gold), 0, BANDS - 1).astype(int)
    edges = np.linspace(-1, 1, _BAND_BINS + 1)
    chosen = [similarity[band == number] for number in range(BANDS)]
    return tuple(
        Histogram(
            tuple(map(float, edges)),
            tuple(map(int, np.histogram(part, edges)[0])),
            float(part.mean()) if len(part) else 0.0,
        )
        for part in chosen
    )


def edit_bins(similarity: np.ndarray, pairs: Pairs) -> tuple[EditBin, ...]:
    """Pairs by edit distance, in bins of about equally many."""
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


def word_figures(
    table: np.ndarray, counts: np.ndarray, neighbours: int
) -> tuple[dict[str, Figure], dict[str, str]]:
    """What a token table knows of frequency (Li et al. 2020, BERT-flow): table (m, d) the rows of m words, counts (m,) how often each was seen.

    Spearman of the frequency rank (1 the most frequent) with the row's norm and with its mean distance to the k nearest rows. A positive figure: rare
    words lie farther out, and sparser.
    """
    if len(counts) <= neighbours:
        return {}, {"word_frequency": f"needs more than {neighbours} words, there are {len(counts)}"}
    most = np.argsort(-counts, kind="stable")[:_MOST_WORDS]
    rows, rank = table[most].astype(np.float64), -counts[most]
    made = {
        "frequency_norm": rank_correlation(rank, np.linalg.norm(rows, axis=1), "words"),
        "frequency_distance": rank_correlation(rank, neighbour_distances(rows, neighbours), "words"),
        "table_anisotropy": Figure(value=anisotropy(rows), count=len(rows), of="words"),
    }
    why = "all words are equally frequent, or their rows equally long"
    return {name: figure for name, figure in made.items() if figure}, {
        name: why for name, figure in made.items() if not figure
    }
