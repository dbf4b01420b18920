"""The geometry section shows all measured values, gives reasons for missing ones, and escapes names."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.charts.geometry import COLOURS
from pipeline.report.evaluation import render
from pipeline.report.evaluation_report import EvaluatedCandidate, EvaluationReport, Section
from pipeline.report.geometry import sections
from pipeline.stats.geometry import Metric
from pipeline.stats.measured import GeometryReport, Level, NamedLayers, NamedSpace
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
        )
        for number in range(count)
    )


WORDS = {
    "frequency_norm": Metric(value=-12.345, count=90, of="words"),
    "table_anisotropy": Metric(value=0.02, count=90, of="words"),
}
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
    depths=(NamedLayers(name=NAMES[0], levels=levels(7), words=WORDS, missing={}),),
    missing={},
)
PAGE = EvaluationReport(
    root="root", id="id", candidates=tuple(EvaluatedCandidate(name, name, 8, "space") for name in NAMES)
)


def by_heading(geometry: GeometryReport) -> dict[str, Section]:
    return {section.heading: section for section in sections(geometry)}


def test_all_measured_values_are_shown():
    shown = by_heading(FULL)
    assert [len(section.charts) for section in shown.values()] == [5, 2, 6, 0]
    table = shown["Geometry of the space"].table
    assert table[0] == ("", *NAMES, "good")
    assert shown["The token table"].table[1][1] == "−12.35"
    edits = next(row for row in table if "edit distance" in row[0])
    assert edits[-1] == "human scores: −20.20"
    text = render(replace(PAGE, sections=sections(FULL)))
    assert all(f".key.s{number} {{ background: var(--s{number});" in text for number in range(COLOURS))
    page = Page(text)
    assert "raw <b>" in page.words
    assert "60 sentences of some captions" in page.words
    assert not page.links


@pytest.mark.parametrize("alone", [0, 1])
def test_one_candidate_alone(alone: int):
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
