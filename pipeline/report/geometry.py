"""Build the sections of the evaluation page about the geometry of the vector space.

Each subject of the page has a module of its own.
"""

from collections.abc import Sequence

from markupsafe import Markup

from pipeline.charts import geometry as charts
from pipeline.charts.frame import occupied_range, percent
from pipeline.charts.geometry import three_digits
from pipeline.report.evaluation_report import Chart, Section
from pipeline.report.formats import cosine, plain, two_decimals
from pipeline.report.training_charts import legend
from pipeline.stats.encoder_geometry import LOWEST_WORDS, GeometryReport, NamedLayers
from pipeline.stats.geometry import Metric

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
_FREQUENCY_NOTE = (
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
    return Section("Word vectors by frequency", table=(header, *rows), notes=(_FREQUENCY_NOTE,))


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


# Metrics of each layer: heading and explanation of the chart.
_LAYER_METRICS = {
    "word_cosine": (
        "Any two words",
        "Mean cosine of two random words of different sentences. Good: near 0; near 1, a layer has all words "
        "in a narrow cone.",
    ),
    "self_similarity_adjusted": (
        "One word in different sentences",
        "Self-similarity minus that of random words. High: the vector of a word does not depend on its "
        "sentence. It decreases as layers use context.",
    ),
    "intra_similarity_adjusted": (
        "Words of one sentence",
        "Cosine of words with their sentence's mean, minus that of random words. High: all words of a "
        "sentence have a similar direction, which suits pooling.",
    ),
    "explained_variance_adjusted": (
        "A word in one vector",
        "Proportion of a word's variance that one direction explains, minus that of random words. Near 0: no "
        "static vector can represent the word.",
    ),
    "sentence_anisotropy": (
        "Any two sentences",
        "Mean cosine of mean-pooled sentences. Good: near 0; near 1, all sentences look similar.",
    ),
    "sentence_alignment": (
        "Pairs of the same meaning",
        "Mean squared distance of pairs with human scores above 4 of 5. Good: low, provided that other "
        "sentences are farther apart.",
    ),
}
# Metrics of sentence vectors: label and good value.
_SPACE_METRICS = {
    "gold_correlation": ("Spearman x100 with human scores", "higher"),
    "alignment": ("alignment: squared distance of pairs of the same meaning", "lower"),
    "pair_uniformity": ("uniformity, over all sentences of the pairs", "lower"),
    "uniformity": ("uniformity, over the sampled sentences", "lower"),
    "anisotropy": ("anisotropy: mean cosine of two sentences", "near 0"),
    "participation_ratio": ("directions that carry the vectors (participation ratio)", "higher"),
    "participation_ratio_centred": ("the same about their mean", "higher"),
    "hub_skewness": ("skewness of how often a sentence is a neighbour", "near 0"),
    "largest_hub": ("sentences that have the largest hub among their nearest", "lower"),
    "antihubs": ("sentences that are nobody's neighbour", "lower"),
    "edit_correlation": ("Spearman x100 of cosine with edit distance", "as human scores"),
    "length_cosine": ("Spearman x100 of cosine with difference in length", "near 0"),
    "length_norm": ("Spearman x100 of norm with length", "near 0"),
}
# Metrics of token embeddings: label.
_WORD_METRICS = {
    "frequency_norm": "Spearman x100 of frequency rank with the word vector's norm",
    "frequency_distance": "Spearman x100 of frequency rank with the distance to the nearest words",
    "table_anisotropy": "mean cosine of two rows of the token table",
}
_PROPORTIONS = ("largest_hub", "antihubs")
# Heading and explanation of each chart.
_CHART_TEXTS = {
    "spectra": (
        "Singular values relative to the largest",
        "Good: a flat line. If it falls steeply, few directions have most of the variance.",
    ),
    "cosines": (
        "Cosines of random pairs of sentences",
        "Good: a peak around 0. Far to the right, unrelated sentences look related. Dotted: the means.",
    ),
    "plane": (
        "Alignment and uniformity",
        "Good: the lower left corner. Lower: pairs of the same meaning are closer; left: sentences fill the "
        "space more evenly.",
    ),
    "hubs": (
        "How often a sentence is a neighbour",
        "Proportion of sentences. Good: all in the middle. Search never finds those at the left; hubs, at "
        "the right, are in too many results.",
    ),
    "edits": (
        "Similarity by edit distance",
        "Mean rank of pairs, by cosine and by human score (dashed). Good: as steep as the dashed line. "
        "Steeper: the encoder compares spelling rather than meaning.",
    ),
}
_HUMAN_SCORES_KEY = Markup(' <span class="series"><span class="key people"></span>human scores</span>')
_MEV_NOTES = {
    "literal": "The variance of a word is measured about zero: the formula printed by Ethayarajh (2019).",
    "published": "The variance of a word is measured as by the program of Ethayarajh (2019): "
    "about the mean, along the first singular vector of the vectors that are not centred.",
    "centred": "The variance of a word is measured about its mean, along its first principal component.",
}
_BANDS_NOTE = (
    "Good: every peak is to the right of the one below it, with little overlap. "
    "Each row's mean is next to its mark."
)
_TOKENS_NOTE = (
    "Rank 1 is the most frequent word of the sampled sentences. Good: near 0; otherwise positions depend on "
    "frequency rather than meaning."
)


def sections(geometry: GeometryReport) -> tuple[Section, ...]:
    """Return the sections about geometry, without empty ones; they are styled by geometry.css.j2."""
    all_sections = (
        Section(
            "Geometry of the space",
            _space_charts(geometry),
            _metric_table(geometry),
            (_sample_note(geometry),),
        ),
        Section("Cosines by human score", _band_charts(geometry), notes=(_BANDS_NOTE,)),
        Section("Layer by layer", _layer_charts(geometry), notes=(_MEV_NOTES[geometry.mev],)),
        lowest_words(geometry.depths),
        Section("The token table", table=_word_table(geometry), notes=(_TOKENS_NOTE,)),
        frequency_table(geometry.depths),
        static_words(geometry.depths),
    )
    missing = Section("Geometry that was not measured", notes=_missing_notes(geometry))
    shown = tuple(section for section in all_sections if section.charts or section.table)
    return (*shown, missing) if missing.notes else shown


def _sample_note(geometry: GeometryReport) -> str:
    pairs = f" {geometry.pairs:,} pairs of {geometry.pairs_source}." if geometry.pairs_source else ""
    return (
        f"{geometry.sentences:,} sentences of {geometry.source}, sampled by hash of their text, further "
        f"samples by seed {geometry.seed}.{pairs} Edit distance is counted in {geometry.edit_unit}; "
        f"neighbours are the {geometry.neighbours} nearest by cosine."
    )


def _space_charts(geometry: GeometryReport) -> tuple[Chart, ...]:
    """Draw the charts of sentence vectors whose values every series has."""
    spaces = [series.space for series in geometry.series]
    key = legend([series.name for series in geometry.series])
    svg_by_name: dict[str, Markup] = {
        "spectra": charts.spectra_chart([space.spectrum for space in spaces]),
        "cosines": charts.cosines_chart([space.cosines for space in spaces]),
    }
    if all({"alignment", "pair_uniformity"} <= space.metrics.keys() for space in spaces):
        svg_by_name["plane"] = charts.alignment_chart(
            [(space.metrics["pair_uniformity"].value, space.metrics["alignment"].value) for space in spaces]
        )
    if all(space.hub_counts for space in spaces):
        svg_by_name["hubs"] = charts.hubs_chart([space.hub_counts for space in spaces], geometry.neighbours)
    if all(space.edits for space in spaces):
        svg_by_name["edits"] = charts.edits_chart([space.edits for space in spaces])
    keys = {"edits": key + _HUMAN_SCORES_KEY}
    return tuple(
        Chart(_CHART_TEXTS[name][0], svg, _CHART_TEXTS[name][1], keys.get(name, key))
        for name, svg in svg_by_name.items()
    )


def _band_charts(geometry: GeometryReport) -> tuple[Chart, ...]:
    """Draw one chart for each space, on a common axis."""
    shown = [(number, series) for number, series in enumerate(geometry.series) if series.space.bands]
    bands = [band for _, series in shown for band in series.space.bands if band.total]
    low = min([0.0, *(occupied_range(band)[0] for band in bands)])
    return tuple(
        Chart(series.name, charts.bands_chart(series.space.bands, low, number)) for number, series in shown
    )


def _layer_charts(geometry: GeometryReport) -> tuple[Chart, ...]:
    """Draw a chart of each metric that all layers of all encoders have."""
    depths = [depth for depth in geometry.depths if depth.levels]
    key, layer_charts = legend([depth.name for depth in depths]), []
    for name, (heading, explanation) in _LAYER_METRICS.items():
        curves = [
            [
                (float(level.number), level.metrics[name].value)
                for level in depth.levels
                if name in level.metrics
            ]
            for depth in depths
        ]
        if curves and all(curves):
            layer_charts.append(Chart(heading, charts.layer_chart(curves, heading), explanation, key))
    return tuple(layer_charts)


def _metric_table(geometry: GeometryReport) -> tuple[tuple[str, ...], ...]:
    """Return the table of metrics by series, with their good values; metrics without a value are left out."""
    rows = [("", *(series.name for series in geometry.series), "good")]
    for name, (label, good) in _SPACE_METRICS.items():
        spaces = [series.space for series in geometry.series]
        if any(space.metrics.get(name) for space in spaces):
            if name == "edit_correlation" and geometry.gold_edits is not None:
                good = f"human scores: {two_decimals(geometry.gold_edits.value)}"
            rows.append((label, *(_cell(name, space.metrics.get(name), space.dim) for space in spaces), good))
    return tuple(rows)


def _cell(name: str, metric: Metric | None, dim: int = 0) -> str:
    """Format the metric `name` of vectors with `dim` dimensions."""
    if metric is None:
        return "–"
    if name in _PROPORTIONS:
        return percent(metric.value)
    if "correlation" in name or name.startswith(("length", "frequency")):
        return two_decimals(metric.value)
    return charts.three_digits(metric.value) + (f" of {dim}" if name.startswith("participation") else "")


def _word_table(geometry: GeometryReport) -> tuple[tuple[str, ...], ...]:
    """Return a table of word metrics by encoder; () if there are none."""
    if not any(depth.words for depth in geometry.depths):
        return ()
    return (
        ("", *(depth.name for depth in geometry.depths)),
        *(
            (label, *(_cell(name, depth.words.get(name)) for depth in geometry.depths))
            for name, label in _WORD_METRICS.items()
        ),
    )


def _missing_notes(geometry: GeometryReport) -> tuple[str, ...]:
    """Name every metric that could not be measured, with the reason."""
    reasons_by_encoder = [
        ("", geometry.missing),
        *((f"{depth.name}, ", depth.missing) for depth in geometry.depths),
        *((f"{series.name}, ", series.space.missing) for series in geometry.series),
    ]
    return tuple(
        f"{encoder}{plain(metric)}: {reason}"
        for encoder, reasons in reasons_by_encoder
        for metric, reason in reasons.items()
    )
