"""The part of an evaluation about geometry: what the space of each candidate looks like, and what would be good."""

from collections.abc import Sequence

from markupsafe import Markup

from pipeline.charts import geometry as charts
from pipeline.charts.frame import percent
from pipeline.report.evaluation import Chart, Section
from pipeline.stats.geometry import Metric
from pipeline.stats.measured import GeometryReport
from pipeline.stats.sample import Histogram
from pipeline.stats.space import Space

_LAYERED = {
    "word_cosine": (
        "Any two words",
        "How alike two random words of different sentences are. Good: near 0; a layer near 1 squeezes all words into a narrow cone.",
    ),
    "self_similarity_adjusted": (
        "One word in different sentences",
        "Self-similarity beyond that of random words. High: a word has one meaning wherever it stands; low: its sentence decides. It falls as layers read context.",
    ),
    "intra_similarity_adjusted": (
        "Words of one sentence",
        "Cosine of words with their sentence's mean, beyond random words. High: a layer gives all words of a sentence one direction, as pooling wants.",
    ),
    "explained_variance_adjusted": (
        "A word in one vector",
        "Share of a word's variance that one direction explains, beyond random words. Near 0: no single static vector could stand for the word.",
    ),
    "sentence_anisotropy": (
        "Any two sentences",
        "Mean cosine of mean-pooled sentences. Good: near 0, so that unrelated sentences look it; near 1 all look alike.",
    ),
    "sentence_alignment": (
        "Pairs of the same meaning",
        "Mean squared distance of pairs that people score above 4. Good: low, if sentences as a whole stay apart.",
    ),
}
_ROWS = {
    "gold_correlation": ("Spearman x100 with the scores of people", "higher"),
    "alignment": ("alignment: squared distance of pairs of the same meaning", "lower"),
    "pair_uniformity": ("uniformity, over all sentences of the pairs", "lower"),
    "uniformity": ("uniformity, over the sampled sentences", "lower"),
    "anisotropy": ("anisotropy: mean cosine of two sentences", "near 0"),
    "participation_ratio": ("directions that carry the vectors (participation ratio)", "higher"),
    "participation_ratio_centred": ("the same about their mean", "higher"),
    "hub_skewness": ("skewness of how often a sentence is a neighbour", "near 0"),
    "largest_hub": ("sentences that have the largest hub among their nearest", "lower"),
    "antihubs": ("sentences that are nobody's neighbour", "lower"),
    "edit_correlation": ("Spearman x100 of cosine with edit distance", "as people's"),
    "length_cosine": ("Spearman x100 of cosine with difference in length", "near 0"),
    "length_norm": ("Spearman x100 of norm with length", "near 0"),
}
_WORDS = {
    "frequency_norm": "Spearman x100 of frequency rank with the word vector's norm",
    "frequency_distance": "Spearman x100 of frequency rank with the distance to the nearest words",
    "table_anisotropy": "mean cosine of two rows of the token table",
}
_SHARES = ("largest_hub", "antihubs")
_CHARTS = {
    "spectra": (
        "Singular values, the largest taken as 1",
        "Good: a flat line. Where it falls steeply, few directions carry all, and the rest tells nothing apart.",
    ),
    "cosines": (
        "Cosines of random pairs of sentences",
        "Good: a hill around 0. Far to the right, unrelated sentences look related. Dotted: the means.",
    ),
    "plane": (
        "Alignment and uniformity",
        "Good: the lower left corner. Downwards, pairs of the same meaning lie closer; to the left, sentences fill their space more evenly.",
    ),
    "hubs": (
        "How often a sentence is a neighbour",
        "Share of sentences. Good: all in the middle. Those that are never found are lost to search; hubs, at the right, crowd into answers where they do not belong.",
    ),
    "edits": (
        "Similarity by edit distance",
        "Mean rank of pairs among all, by cosine and by the score of people. Good: as steep as the dashed line. Steeper: the encoder goes by spelling, not by meaning.",
    ),
}
_PEOPLE = Markup(' <span class="series"><span class="key people"></span>people</span>')
_BANDS = "Good: every hill stands to the right of the one below it, and they overlap little. Each row's mean is written beside its mark."
_TOKENS = "Rank 1 is the most frequent word of the sampled sentences. Good: near 0. Away from it, frequent and rare words lie apart whatever they mean."


def sections(geometry: GeometryReport) -> tuple[Section, ...]:
    """The part of the evaluation page about geometry; a section without anything to show is left out. The page's style holds geometry.css.j2."""
    made = (
        Section("Geometry of the space", _charts(geometry), _table(geometry), (_sampled(geometry),)),
        Section("Cosines by the score that people gave", _bands(geometry), notes=(_BANDS,)),
        Section("Layer by layer", _layers(geometry)),
        Section("The token table", table=_words(geometry), notes=(_TOKENS,)),
        Section(
            "Geometry that was not measured",
            notes=tuple(f"{what}: {why}" for what, why in _missing(geometry)),
        ),
    )
    return tuple(each for each in made if each.charts or each.table or (each is made[-1] and each.notes))


def _sampled(geometry: GeometryReport) -> str:
    pairs = f" {geometry.pairs:,} pairs of {geometry.pairs_source}." if geometry.pairs_source else ""
    drawn = f"{geometry.sentences:,} sentences of {geometry.source}, drawn by hash of their text, further draws by seed {geometry.seed}."
    return f"{drawn}{pairs} Edit distance is counted in {geometry.edit_unit}; neighbours are the {geometry.neighbours} nearest by cosine."


def _key(names: Sequence[str]) -> Markup:
    """What the colours mean."""
    return Markup(" ").join(
        Markup('<span class="series"><span class="key {}"></span>{}</span>').format(
            charts.colour(place), name
        )
        for place, name in enumerate(names)
    )


def _charts(geometry: GeometryReport) -> tuple[Chart, ...]:
    """Of sentence vectors; a chart is drawn where every series has what it shows."""
    spaces, key = (
        [series.space for series in geometry.series],
        _key([series.name for series in geometry.series]),
    )
    drawn: dict[str, Markup] = {
        "spectra": charts.spectra_chart([space.spectrum for space in spaces]),
        "cosines": charts.cosines_chart([space.cosines for space in spaces]),
    }
    if all({"alignment", "pair_uniformity"} <= space.figures.keys() for space in spaces):
        drawn["plane"] = charts.plane_chart(
            [(space.figures["pair_uniformity"].value, space.figures["alignment"].value) for space in spaces]
        )
    if all(space.found for space in spaces):
        drawn["hubs"] = charts.hubs_chart([space.found for space in spaces], geometry.neighbours)
    if all(space.edits for space in spaces):
        drawn["edits"] = charts.edits_chart([space.edits for space in spaces])
    keys = {"edits": key + _PEOPLE}
    return tuple(
        Chart(_CHARTS[name][0], svg, _CHARTS[name][1], keys.get(name, key)) for name, svg in drawn.items()
    )


def _bands(geometry: GeometryReport) -> tuple[Chart, ...]:
    """One chart for each space, over one axis."""
    shown = [(place, series) for place, series in enumerate(geometry.series) if series.space.bands]
    low = min(
        (_lowest(band) for _, series in shown for band in series.space.bands if band.total), default=0.0
    )
    return tuple(
        Chart(series.name, charts.bands_chart(series.space.bands, low, place)) for place, series in shown
    )


def _lowest(band: Histogram) -> float:
    return min(0.0, next(edge for edge, count in zip(band.edges, band.counts, strict=False) if count))


def _layers(geometry: GeometryReport) -> tuple[Chart, ...]:
    """Each figure by layer."""
    depths = [depth for depth in geometry.depths if depth.levels]
    key, made = _key([depth.name for depth in depths]), []
    for name, (heading, good) in _LAYERED.items():
        curves = [
            [
                (float(level.number), level.figures[name].value)
                for level in depth.levels
                if name in level.figures
            ]
            for depth in depths
        ]
        if curves and all(curves):
            made.append(Chart(heading, charts.layer_chart(curves, heading), good, key))
    return tuple(made)


def _table(geometry: GeometryReport) -> tuple[tuple[str, ...], ...]:
    """What, a cell for each series, what is good; rows that nobody has are left out."""
    rows = [("", *(series.name for series in geometry.series), "good")]
    for name, (words, good) in _ROWS.items():
        found = [series.space.figures.get(name) for series in geometry.series]
        if any(found):
            rows.append(
                (
                    words,
                    *(
                        _cell(name, figure, series.space)
                        for figure, series in zip(found, geometry.series, strict=True)
                    ),
                    _aim(name, good, geometry),
                )
            )
    return tuple(rows)


def _aim(name: str, good: str, geometry: GeometryReport) -> str:
    if name != "edit_correlation" or geometry.gold_edits is None:
        return good
    return f"people: {geometry.gold_edits.value:.2f}".replace("-", "\u2212")


def _cell(name: str, figure: Metric | None, space: Space) -> str:
    if figure is None:
        return "–"
    if name in _SHARES:
        return percent(figure.value)
    if "correlation" in name or name.startswith("length"):
        return f"{figure.value:.2f}".replace("-", "\u2212")
    return charts.figure(figure.value) + (f" of {space.dim}" if name.startswith("participation") else "")


def _words(geometry: GeometryReport) -> tuple[tuple[str, ...], ...]:
    """What, and a cell for each encoder; () where nobody has any."""
    rows = [
        (words, *(_word_cell(name, depth.words.get(name)) for depth in geometry.depths))
        for name, words in _WORDS.items()
    ]
    known = any(depth.words for depth in geometry.depths)
    return (("", *(depth.name for depth in geometry.depths)), *rows) if known else ()


def _word_cell(name: str, figure: Metric | None) -> str:
    if figure is None:
        return "–"
    return (
        f"{figure.value:.2f}".replace("-", "\u2212")
        if name.startswith("frequency")
        else charts.figure(figure.value)
    )


def _missing(geometry: GeometryReport) -> list[tuple[str, str]]:
    """(what, why) of all that could not be measured."""
    whole = [(name.replace("_", " "), why) for name, why in geometry.missing.items()]
    owners: Sequence[tuple[str, dict[str, str]]] = [(each.name, each.missing) for each in geometry.depths] + [
        (each.name, each.space.missing) for each in geometry.series
    ]
    return whole + [
        (f"{owner}, {name.replace('_', ' ')}", why) for owner, gone in owners for name, why in gone.items()
    ]
