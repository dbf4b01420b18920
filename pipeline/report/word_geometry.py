"""Build the sections of the evaluation page about single words: self-similarity and frequency."""

from collections.abc import Sequence

from pipeline.charts.geometry import three_digits
from pipeline.report.evaluation_report import Section
from pipeline.report.formats import cosine
from pipeline.stats.encoder_geometry import LOWEST_WORDS, NamedLayers

_LOWEST_NOTE = (
    "The words of lowest self-similarity in each layer, whose vectors depend most on their sentence. "
    "Self-similarity is the mean cosine of two occurrences of a word (Ethayarajh 2019). The baseline is not "
    "subtracted."
)
_STATIC_NOTE = (
    "The first principal component of the vectors of each word, not centred, with the sign of their mean "
    "(Ethayarajh 2019). Each file is an encoder: encoder.path=FILE. Words are left out at random if their "
    "vectors in all layers do not fit in memory."
)
_BANDS_NOTE = (
    "Rows of the token table by frequency in the sampled sentences: mean L2 norm, and mean L2 distance to "
    "the k nearest of all these words (Li et al. 2020). Good: equal in all rows; otherwise rare words are "
    "farther from the origin and from each other."
)


def lowest_words(encoders: Sequence[NamedLayers]) -> Section:
    """Build the table of the words of lowest self-similarity, one row per layer."""
    rows = [
        (
            _row_name(encoders, encoder, f"layer {level.number}"),
            *(f"{similarity.word} {cosine(similarity.value)}" for similarity in level.lowest),
            *[""] * (LOWEST_WORDS - len(level.lowest)),
        )
        for encoder in encoders
        for level in encoder.levels
        if level.lowest
    ]
    header = ("", *(str(number) for number in range(1, LOWEST_WORDS + 1)))
    return Section(
        "Words of lowest self-similarity", table=(header, *rows) if rows else (), notes=(_LOWEST_NOTE,)
    )


def frequency_table(encoders: Sequence[NamedLayers]) -> Section:
    """Build the table of word vectors by bands of frequency ranks."""
    rows = [
        (
            _row_name(encoders, encoder, f"ranks {band.first_rank:,} to {band.last_rank:,}"),
            f"{band.words:,}",
            three_digits(band.norm),
            *(three_digits(distance) for distance in band.distances.values()),
        )
        for encoder in encoders
        for band in encoder.bands
    ]
    if not rows:
        return Section("Word vectors by frequency")
    distances = next(encoder.bands[0].distances for encoder in encoders if encoder.bands)
    header = ("", "words", "norm", *(f"distance, k = {k}" for k in distances))
    return Section("Word vectors by frequency", table=(header, *rows), notes=(_BANDS_NOTE,))


def static_words(encoders: Sequence[NamedLayers]) -> Section:
    """Build the table of the files of static word vectors."""
    rows = [
        (_row_name(encoders, encoder, f"layer {file.layer}"), f"{file.words:,}", file.uri)
        for encoder in encoders
        for file in encoder.static_words
    ]
    header = ("", "words", "file")
    return Section("Static word vectors", table=(header, *rows) if rows else (), notes=(_STATIC_NOTE,))


def _row_name(encoders: Sequence[NamedLayers], encoder: NamedLayers, name: str) -> str:
    """Put the encoder before the name of a row if there are several."""
    return f"{encoder.name}, {name}" if len(encoders) > 1 else name
