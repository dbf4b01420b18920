"""The geometry section shows all measured values, gives reasons for missing ones, and escapes names."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.charts.geometry import COLOURS
from pipeline.report.evaluation import render
from pipeline.report.evaluation_report import EvaluatedCandidate, EvaluationReport, Section
from pipeline.report.geometry import sections
from pipeline.stats.encoder_geometry import (
    GeometryReport,
    Level,
    NamedLayers,
    NamedSpace,
    StaticWords,
    WordSimilarity,
)
from pipeline.stats.frequency import FrequencyBand
from pipeline.stats.geometry import Metric
from pipeline.stats.space import ScoredPairs, sentence_space, with_pairs
from tests.report.pages import Page

RNG = np.random.default_rng(0)
TEXTS = [f"sentence {'x' * number} {number}" for number in range(60)]
PAIRS = ScoredPairs.of(TEXTS[:30], TEXTS[:29:-1], np.linspace(0, 5, 30), "characters")
NAMES = ("raw <b>", "whitened")


def space(loc: float):
    x = RNG.normal(loc=loc, size=(60, 8))
    return with_pairs(sentence_space(x, TEXTS, 5, 0), x, PAIRS, 0)


def levels(count: int) -> tuple[Level, ...]:
    names = (
        "word_cosine",
        "self_similarity_adjusted",
        "intra_similarity_adjusted",
        "explained_variance_adjusted",
        "sentence_anisotropy",
        "sentence_alignment",
    )
    return tuple(
        Level(
            number=number,
            metrics={name: Metric(value=0.1 * number, count=9, of="words", seed=0) for name in names},
            lowest=(
                WordSimilarity(word="<of>", value=0.1234 + number, sentences=7),
                WordSimilarity(word="##ing", value=2.5 + number, sentences=6),
            ),
        )
        for number in range(count)
    )


WORDS = {
    "frequency_norm": Metric(value=-12.345, count=90, of="words"),
    "table_anisotropy": Metric(value=0.02, count=90, of="words"),
}
BANDS = (
    FrequencyBand(first_rank=1, last_rank=100, words=100, norm=1.234, distances={3: 0.5, 5: 0.6, 7: 0.71}),
    FrequencyBand(first_rank=101, last_rank=500, words=37, norm=2.345, distances={3: 1.5, 5: 1.6, 7: 1.7}),
)
STATIC = tuple(StaticWords(layer=layer, words=1_234, uri=f"/store/<{layer}>.txt") for layer in range(2))
FULL = GeometryReport(
    sentences=60,
    source="some captions",
    pairs=30,
    pairs_source="STSB-dev",
    seed=0,
    neighbours=5,
    edit_unit="characters",
    mev="literal",
    gold_edits=Metric(value=-20.2, count=30, of="pairs"),
    series=tuple(
        NamedSpace(name=name, space=space(loc)) for name, loc in zip(NAMES, (0.5, 0.0), strict=True)
    ),
    depths=(
        NamedLayers(
            name=NAMES[0], levels=levels(7), words=WORDS, bands=BANDS, static_words=STATIC, missing={}
        ),
    ),
    missing={},
)
PAGE = EvaluationReport(
    root="root", id="id", candidates=tuple(EvaluatedCandidate(name, name, 8, "space") for name in NAMES)
)


def by_heading(geometry: GeometryReport) -> dict[str, Section]:
    return {section.heading: section for section in sections(geometry)}


def test_all_measured_values_are_shown():
    shown = by_heading(FULL)
    assert [len(section.charts) for section in shown.values()] == [5, 2, 6, 0, 0, 0, 0]
    table = shown["Geometry of the space"].table
    assert table[0] == ("", *NAMES, "good")
    assert shown["The token table"].table[1][1] == "−12.35"
    lowest = shown["Words of lowest self-similarity"].table
    assert [len(row) for row in lowest] == [11] * 8
    assert lowest[3] == ("layer 2", "<of> 2.123", "##ing 4.500", *[""] * 8)
    assert shown["Word vectors by frequency"].table == (
        ("", "words", "norm", "distance, k = 3", "distance, k = 5", "distance, k = 7"),
        ("ranks 1 to 100", "100", "1.23", "0.500", "0.600", "0.710"),
        ("ranks 101 to 500", "37", "2.35", "1.50", "1.60", "1.70"),
    )
    assert shown["Static word vectors"].table[2] == ("layer 1", "1,234", "/store/<1>.txt")
    edits = next(row for row in table if "edit distance" in row[0])
    assert edits[-1] == "human scores: −20.20"
    text = render(replace(PAGE, sections=sections(FULL)))
    assert all(f".key.s{number} {{ background: var(--s{number});" in text for number in range(COLOURS))
    page = Page(text)
    assert "raw <b>" in page.words
    assert "<of> 0.123" in page.words
    assert "60 sentences of some captions" in page.words
    assert not page.links


def test_rows_of_several_encoders_have_their_names():
    other = NamedLayers(name="other", levels=levels(2), words={}, bands=BANDS[:1], missing={})
    shown = by_heading(FULL.model_copy(update={"depths": (*FULL.depths, other)}))
    names = [row[0] for row in shown["Word vectors by frequency"].table[1:]]
    assert names == ["raw <b>, ranks 1 to 100", "raw <b>, ranks 101 to 500", "other, ranks 1 to 100"]
    assert shown["Words of lowest self-similarity"].table[-1][0] == "other, layer 1"


@pytest.mark.parametrize("alone", [0, 1])
def test_the_page_of_one_candidate_is_well_formed(alone: int):
    Page(
        render(
            replace(
                PAGE,
                candidates=PAGE.candidates[:1],
                sections=sections(FULL.model_copy(update={"series": (FULL.series[alone],)})),
            )
        )
    )


def test_missing_values_are_left_out_with_a_reason():
    bare = NamedSpace(
        name="bag",
        space=sentence_space(RNG.normal(size=(60, 8)), TEXTS, 5, 0).model_copy(
            update={"missing": {"length_norm": "all alike"}}
        ),
    )
    depth = NamedLayers(name="bag", levels=(), words={}, missing={"layers": "none there"})
    geometry = FULL.model_copy(
        update={
            "series": (bare,),
            "depths": (depth,),
            "pairs": 0,
            "pairs_source": None,
            "gold_edits": None,
            "missing": {"pairs": "no STS-B"},
        }
    )
    shown = by_heading(geometry)
    assert list(shown) == ["Geometry of the space", "Geometry that was not measured"]
    assert [chart.heading for chart in shown["Geometry of the space"].charts] == [
        "Singular values relative to the largest",
        "Cosines of random pairs of sentences",
        "How often a sentence is a neighbour",
    ]
    assert shown["Geometry that was not measured"].notes == (
        "pairs: no STS-B",
        "bag, layers: none there",
        "bag, length norm: all alike",
    )
