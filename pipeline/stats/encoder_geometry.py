"""Records of the geometry of encoders, as stored and reported: sentence spaces, layers, token table."""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from pipeline.config import Settings
from pipeline.stats.contextuality import LayerStates, Mev, layer_metrics, self_similarities
from pipeline.stats.frequency import FrequencyBand
from pipeline.stats.geometry import Metric, alignment, anisotropy, participation_ratio, uniformity
from pipeline.stats.occurrences import Occurrences
from pipeline.stats.sample import singular_spectrum
from pipeline.stats.space import Space
from pipeline.store.records.sealed_json import FileRef, Stored

RAW = "raw"  # key of the untransformed vectors, next to the ids of transforms
LOWEST_WORDS = 10  # number of words listed for each layer, as by Ethayarajh 2019


class WordSimilarity(Settings):
    """Self-similarity of one word in one layer."""

    word: str
    value: float
    sentences: int
    """number of sentences in which the word occurs"""


class Level(Settings):
    """Metrics of one layer; layer 0 is the output of the embedding layer.

    Metrics whose names begin with sentence_ measure mean-pooled sentences, all others words (see
    `contextuality`).
    """

    number: int
    metrics: dict[str, Metric] = Field(alias="figures")
    lowest: tuple[WordSimilarity, ...] = ()
    """the words of lowest self-similarity, ascending"""


class EncoderGeometry(Stored):
    """Geometry of one encoder."""

    space_id: str
    spaces: dict[str, Space]
    """spaces by transform_id; RAW for untransformed vectors"""
    levels: tuple[Level, ...] = ()
    words: dict[str, Metric] = {}
    """metrics of the token table"""
    bands: tuple[FrequencyBand, ...] = ()
    """rows of the token table by word frequency"""
    static_words: tuple[FileRef, ...] = ()
    """static word vectors of each layer, in the order of the layers; () unless they are requested"""
    missing: dict[str, str] = {}
    """name of a metric -> reason why it could not be measured"""


class NamedSpace(Settings):
    """A space with its name in tables and charts."""

    name: str
    space: Space


class StaticWords(Settings):
    """A file of static word vectors, made of the states of one layer."""

    layer: int
    words: int
    uri: str


class NamedLayers(Settings):
    """The layers of one encoder with its name in tables and charts."""

    name: str
    levels: tuple[Level, ...]
    words: dict[str, Metric]
    bands: tuple[FrequencyBand, ...] = ()
    static_words: tuple[StaticWords, ...] = ()
    missing: dict[str, str]


class GeometryReport(Settings):
    """Results of `manta evaluate --geometry`."""

    sentences: int
    """number of sentences sampled by hash of their text"""
    source: str
    """where the sentences are from"""
    pairs: int
    """number of pairs with similarity scores"""
    pairs_source: str | None
    """where the pairs are from, or None"""
    seed: int
    """seed of all samples"""
    neighbours: int
    """k of hubness and of neighbour distances"""
    edit_unit: str
    """unit of edit distances"""
    mev: Mev
    """definition of the explained variance of words; see `explained_variance`"""
    gold_edits: Metric | None
    """correlation of the gold scores with edit distance, for comparison with the correlation of the
    cosines
    """
    series: tuple[NamedSpace, ...]
    """sentence spaces, one per candidate"""
    depths: tuple[NamedLayers, ...]
    """layers, one entry per encoder"""
    missing: dict[str, str]
    """reasons why metrics could not be measured for any candidate, by metric"""


def measure_layer(
    number: int,
    layer: LayerStates,
    chosen: Occurrences,
    names: Sequence[str],
    positives: tuple[np.ndarray, np.ndarray] | None,
    *,
    seed: int,
    mev: Mev,
) -> Level:
    """Compute the metrics of one layer.

    Args:
        number: index of the layer; 0 is the output of the embedding layer.
        layer: accumulated states of the layer.
        chosen: the occurrences whose states `layer` holds.
        names: the chosen words as text.
        positives: mean-pooled states of this layer, (n, d) for each side of the pairs of equal meaning; None
            without such pairs.
        seed: seed of the sampled pairs.
        mev: definition of the explained variance.
    """
    metrics = layer_metrics(layer, chosen, seed, mev=mev)
    means = layer.means
    if len(means) >= 2:
        metrics |= {
            "sentence_anisotropy": Metric(value=anisotropy(means), count=len(means), of="sentences"),
            "sentence_uniformity": uniformity(means, seed),
            "sentence_participation_ratio": Metric(
                value=participation_ratio(singular_spectrum(means)), count=len(means), of="sentences"
            ),
        }
    if positives is not None:
        metrics["sentence_alignment"] = Metric(
            value=alignment(*positives), count=len(positives[0]), of="pairs"
        )
    return Level(number=number, metrics=metrics, lowest=_lowest_words(layer, chosen, names))


def _lowest_words(
    layer: LayerStates, chosen: Occurrences, names: Sequence[str]
) -> tuple[WordSimilarity, ...]:
    """Return the `LOWEST_WORDS` words of lowest self-similarity, ascending; equal ones by name."""
    values = self_similarities(layer.occurrences, chosen)
    by_value = sorted(zip(values, names, map(len, chosen.words), strict=True))[:LOWEST_WORDS]
    return tuple(WordSimilarity(word=name, value=value, sentences=count) for value, name, count in by_value)
