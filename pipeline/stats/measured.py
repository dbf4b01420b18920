"""The geometry of encoders on one corpus, as kept and shown: every space of sentence vectors, every layer, the token table."""

import numpy as np

from pipeline.config import Settings
from pipeline.stats.contextuality import Layer, Occurrences, layer_figures
from pipeline.stats.geometry import Figure, alignment, anisotropy, participation_ratio, uniformity
from pipeline.stats.sample import singular_spectrum
from pipeline.stats.space import Space
from pipeline.store.units import Stored

RAW = "raw"  # key of the vectors as the encoder gives them, among those of its transforms


class Level(Settings):
    """One layer: 0 is the embedding layer's output. Figures of words (see `contextuality`) and, named sentence_..., of mean-pooled sentences."""

    number: int
    figures: dict[str, Figure]


class EncoderGeometry(Stored):
    """One encoder."""

    space_id: str
    spaces: dict[str, Space]
    """by transform_id; RAW: without any"""
    levels: tuple[Level, ...] = ()
    words: dict[str, Figure] = {}
    """of the token table"""
    missing: dict[str, str] = {}
    """what could not be measured, and why"""


class Series(Settings):
    """One space under the name that it has in tables and charts."""

    name: str
    space: Space


class Depth(Settings):
    """The layers of one encoder under the name that it has in tables and charts."""

    name: str
    levels: tuple[Level, ...]
    words: dict[str, Figure]
    missing: dict[str, str]


class Geometry(Settings):
    """What `manta evaluate --geometry` found. sentences: how many were sampled by hash of their text, from where; pairs: those of known similarity."""

    sentences: int
    source: str
    pairs: int
    pairs_source: str | None
    seed: int
    neighbours: int
    edit_unit: str
    gold_edits: Figure | None
    """correlation of gold scores with edit distance: what a similarity of meaning has"""
    series: tuple[Series, ...]
    depths: tuple[Depth, ...]
    missing: dict[str, str]
    """what could not be measured for any candidate, and why"""


def level(
    number: int,
    layer: Layer,
    chosen: Occurrences,
    positives: tuple[np.ndarray, np.ndarray] | None,
    *,
    seed: int,
    centred: bool,
) -> Level:
    """The figures of one layer; positives: mean-pooled states (n, d) of both sides of pairs of the same meaning, in this layer."""
    figures = layer_figures(layer, chosen, seed, centred=centred)
    means = layer.means
    if len(means) >= 2:
        figures |= {
            "sentence_anisotropy": Figure(value=anisotropy(means), count=len(means), of="sentences"),
            "sentence_uniformity": uniformity(means, seed),
            "sentence_participation_ratio": Figure(
                value=participation_ratio(singular_spectrum(means)), count=len(means), of="sentences"
            ),
        }
    if positives is not None:
        figures["sentence_alignment"] = Figure(
            value=alignment(*positives), count=len(positives[0]), of="pairs"
        )
    return Level(number=number, figures=figures)
