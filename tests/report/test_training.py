"""The page of a training is well-formed, warns of problems, and marks the kept weights."""

import math
import re
from dataclasses import replace

import pytest

from pipeline.report.loss_curve import changes_on_same_rows, changes_over_steps, find_rising_loss
from pipeline.report.model_card import card
from pipeline.report.training import render, verdict
from pipeline.report.training_charts import sections
from pipeline.report.training_report import SourceSummary, TrainingReport
from pipeline.report.training_warnings import training_warnings
from pipeline.settings.training import ObjectiveSettings
from pipeline.stats.geometry import Metric
from pipeline.train.metrics_line import MetricsLine
from tests.report.pages import Page
from tests.report.runs import FULL, LINES, SMALLEST, at_chance, line, with_settings


def rendered(report: TrainingReport) -> str:
    return render(report, training_warnings(report))


def words(report: TrainingReport) -> str:
    return " ".join(Page(rendered(report)).words.split())


@pytest.mark.parametrize(
    "report",
    [SMALLEST, FULL, replace(FULL, lines=LINES[1:2]), replace(FULL, lines=LINES[:1], steps=0)],
    ids=["smallest", "full", "line", "before"],
)
def test_the_page_is_well_formed_and_self_contained(report: TrainingReport):
    page = rendered(report)
    parsed = Page(page)
    assert not parsed.links
    assert "script" not in parsed.names
    assert not re.search(r"https?:|@import|url\(", page)
    assert page == rendered(report)


def test_the_page_shows_data_settings_and_results():
    shown = words(FULL)
    expected = [
        "simcse-3fa9c2d1e0b7",
        "What did the training simcse-3fa9c2d1e0b7 change? On dev the encoder went from 81.24 to 84.50. "
        "Trained with simcse on 6,500 rows, in 500 steps of 64 rows.",
    ]
    expected += [
        "simcse (temperature 0.05, similarity cosine, head cls_mlp, keep head no, positive self, "
        "second same, masks own)"
    ]
    expected += [
        "s3://models/simcse-3fa9c2d1e0b7/encoder",
        "adamw, learning rate 3e−5, linear; float32",
        "11; 3 for the order of rows",
        "2 workers, CPU",
        "5 epochs",
    ]
    expected += [
        "s3://texts/wiki/*.parquet",
        "6,512",
        "5 min 50 s",
        "91.4 rows/s",
        "mean, up to 256 tokens",
        "+3.26",
        "2.13.0",
        "a<b",
        "84.50 at step 250",
    ]
    assert [each for each in expected if each not in shown] == []
    headings = [chart.heading for _, charts in sections(FULL) for chart in charts]
    assert headings == [
        "Spearman x100 on dev",
        "Loss",
        "Alignment against uniformity on dev",
        "Alignment against uniformity",
        "Mean cosine of positives and of negatives",
        "Learning rate",
        "Norm of the gradient",
        "Tokens per second",
        "Proportion of time waiting for a batch",
    ]


def marked_row(report: TrainingReport) -> str:
    (row,) = re.findall(r'<tr class="kept"><td>(\w+)</td>', rendered(report))
    return str(row)


def test_the_kept_weights_are_marked():
    assert marked_row(FULL) == "best"
    assert marked_row(with_settings(dev={"uri": "dev.parquet", "keep": "last"})) == "last"
    last = replace(FULL, lines=(*LINES[:-1], line(500, dev=90.0)), best_step=500)
    assert marked_row(last) == "best", "the best weights are also the last"


def test_accuracy_is_named():
    report = with_settings(dev={"uri": "nli.parquet", "measure": "accuracy"})
    assert "Accuracy, % on dev" in words(report)
    assert "Spearman" not in words(report)
    assert "Pairs classified correctly, in percent, of `nli.parquet`" in card(report)
    assert "Spearman" not in card(report)


def test_missing_metrics_are_left_out():
    bare = tuple(
        MetricsLine(step=step, epoch=0.0, loss=1.0, uniformity=-1.0 - step / 10) for step in (1, 2, 3)
    )
    headings = [chart.heading for _, charts in sections(replace(FULL, lines=bare)) for chart in charts]
    assert headings == ["Loss", "Uniformity"]


def test_the_path_on_dev_has_a_point_for_each_measurement():
    charts = {chart.heading: str(chart.svg) for _, charts in sections(FULL) for chart in charts}
    found = charts["Alignment against uniformity on dev"]
    assert "start: uniformity \u22121.50, alignment 0.200" in found
    assert "end: uniformity \u22122.75, alignment 0.260" in found
    without = replace(FULL, lines=tuple(each.model_copy(update={"dev_geometry": {}}) for each in LINES))
    assert not any("on dev" in chart.heading for _, charts in sections(without) for chart in charts[1:])


def test_several_parts_of_the_loss_are_drawn():
    parts = [{"info_nce": 1.0, "masked_lm": 0.1}, {"info_nce": 0.9}]
    page = words(
        replace(
            FULL, lines=tuple(line(10 * number, parts=each) for number, each in enumerate(parts, start=1))
        )
    )
    assert "loss info_nce masked_lm" in page
    assert "loss info_nce" not in words(FULL)


def test_resuming_is_mentioned():
    lines = (LINES[0], line(10, resumed=1), line(20), line(30, resumed=2), *LINES[4:])
    assert "after step 10; after step 30, 2 times" in words(replace(FULL, lines=lines))
    assert "Resumed" not in words(FULL)


def test_a_good_training_has_no_warnings_but_those_of_the_objective():
    assert training_warnings(FULL) == []
    assert training_warnings(replace(FULL, objective_warnings=("first",), lines=()))[0] == "first"


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (replace(FULL, lines=LINES[1:20]), "Nothing was measured on dev"),
        (
            replace(FULL, lines=(LINES[0], line(10, dev=70.0))),
            "No score on dev was better than the one before the first step",
        ),
        (
            replace(FULL, reason_for_early_end="dev was no better"),
            "It ended before its last step: dev was no better.",
        ),
        (
            replace(
                FULL, lines=tuple(line(step, loss=0.5 + step / 100, dev=80.0) for step in range(10, 100, 10))
            ),
            "The loss rises: 0.7 on average",
        ),
        (replace(FULL, lines=at_chance(64)), "The loss stays at ln 64"),
        (replace(FULL, lines=at_chance(128)), "The loss stays at ln 128"),
        (replace(with_settings(matryoshka=(8, 16, 32)), lines=at_chance(64**3)), "The loss stays at ln 64"),
        (
            replace(with_settings(across_ranks=False, workers=4), lines=at_chance(16)),
            "The loss stays at ln 16",
        ),
        (replace(FULL, lines=(line(10, positive_cosine=1.0, dev=80.0),)), "Positives are equal vectors"),
        (
            replace(FULL, lines=(line(10, negative_cosine=0.995, dev=80.0),)),
            "Different texts have a mean cosine of 0.995",
        ),
        (
            replace(FULL, lines=(*LINES, line(510, counts={"repeated": 640}))),
            "640 of 32,640 rows (2 %) had a text in common with another row of their batch",
        ),
        (
            replace(FULL, lines=(*LINES, line(510, counts={"blank": 7, "overflows": 2}))),
            "7 texts were missing or blank",
        ),
        (
            replace(FULL, lines=(line(10, waiting=0.5, dev=80.0),)),
            "50 % of the time was spent waiting for batches",
        ),
    ],
)
def test_problems_are_warned_about(report: TrainingReport, expected: str):
    assert any(warning.startswith(expected) for warning in training_warnings(report)), training_warnings(
        report
    )
    assert expected in words(report)


@pytest.mark.parametrize("name", ["simcse", "simcse2"])
@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0])
def test_the_loss_at_chance_does_not_depend_on_the_objectives_weight(name: str, weight: float):
    weights = {"simcse": 1.0, "simcse2": 1.0} | {name: weight}
    objective = tuple(ObjectiveSettings(name="simcse", weight=each) for each in weights.values())
    report = with_settings(objective=objective)
    for loss, is_at_chance in ((math.log(64), True), (math.log(64) / 2, False), (2 * math.log(64), False)):
        parts = {f"{each}.info_nce": weights[each] * loss for each in weights}
        lines = tuple(line(step, loss=sum(parts.values()), parts=parts, dev=80.0) for step in (10, 20))
        warnings = training_warnings(replace(report, lines=lines))
        assert any("The loss stays at ln 64" in warning for warning in warnings) == is_at_chance


@pytest.mark.parametrize(
    "losses",
    [[0.5, 0.9] * 5, [0.5] * 10, [1.0, 0.9, 0.8, 0.7, 0.6, 0.5], [0.5, 0.6]],
    ids=["swings", "flat", "falls", "short"],
)
def test_a_fluctuating_or_falling_loss_does_not_rise(losses: list[float]):
    assert find_rising_loss([line(step, loss=loss) for step, loss in enumerate(losses, 1)]) is None


def test_start_and_end_are_compared_without_a_dev_set():
    lines = tuple(
        line(step, loss=2.0 - step / 100, positive_cosine=0.9 - step / 1000) for step in range(1, 101)
    )
    report = with_settings(dev={})
    shown = {
        each.label.split(":")[0]: (each.start, each.end, each.is_better) for each in changes_over_steps(lines)
    }
    assert shown["loss"] == pytest.approx((2 - 0.055, 2 - 0.955, True))
    assert shown["cosine of positives"] == pytest.approx((0.9 - 0.0055, 0.9 - 0.0955, False))
    assert "Start and end" in words(replace(report, lines=lines))
    assert "Start and end" not in words(replace(report, lines=lines[:1]))


def without_dev(start: dict[str, float], end: dict[str, float]) -> TrainingReport:
    first = MetricsLine(step=0, epoch=0.0, same_rows={"rows": 96, **start})
    lines = (first, *(line(step) for step in range(10, 500, 10)), line(500, same_rows={"rows": 96, **end}))
    return replace(with_settings(dev={}), lines=lines, best_step=None)


def test_without_dev_the_same_rows_are_compared():
    report = without_dev(
        {"loss": 1.25, "alignment": 0.4, "retrieval": 70.0},
        {"loss": 0.5, "alignment": 0.3, "retrieval": 90.0},
    )
    assert verdict(report).startswith(
        "On the same 96 rows, the loss went from 1.25 before the first step to 0.5 after the last. Trained "
    )
    assert not training_warnings(report)
    assert "Means over the same 96 rows before the first step and after the last, without dropout" in words(
        report
    )
    row = r"retrieval: rows whose positive is the nearest of the batch, in percent\s*70\s*90\s*higher"
    assert re.search(row, words(report))


def test_no_improvement_on_the_same_rows_is_warned_about():
    report = without_dev({"loss": 0.5}, {"loss": 0.75})
    (expected,) = training_warnings(report)
    assert expected.startswith(
        "On the same 96 rows the loss is no better after the last step (0.75) than before the first (0.5)"
    )


def test_an_early_end_is_warned_about_without_a_dev_set():
    report = without_dev({"loss": 1.25}, {"loss": 0.5})
    (warning,) = training_warnings(replace(report, reason_for_early_end="the learning rate fell below 1e-06"))
    assert warning == "It ended before its last step: the learning rate fell below 1e-06."


def test_equal_views_without_dropout_are_not_compared():
    one = {"loss": 0.5, "alignment": 0.0, "positive_cosine": 1.0, "retrieval": 100.0, "uniformity": -2.0}
    assert [each.name for each in changes_on_same_rows(without_dev(one, one).lines)] == ["loss", "uniformity"]


@pytest.mark.parametrize(
    ("setting", "expected"), [("mask", "not used as negatives"), ("drop", "too few others")]
)
def test_repeats_are_reported_by_setting(setting: str, expected: str):
    report = replace(
        with_settings(order={"repeats": setting}), lines=(*LINES, line(510, counts={"repeated": 5}))
    )
    assert expected in " ".join(training_warnings(report))


def test_no_improvement_is_reported():
    assert "best before the first step: 81.24" in verdict(replace(FULL, lines=(LINES[0], line(10, dev=70.0))))


def test_all_texts_are_escaped():
    page = rendered(
        replace(
            FULL,
            name="<b>&",
            uri="/a<script>",
            sources=(SourceSummary("x<i>y", 1),),
            objective_warnings=("<u>",),
            lines=(line(10, parts={"<s>": 1.0, "b": 2.0}),),
        )
    )
    assert [tag for tag in ("b", "script", "i", "u", "s") if f"&lt;{tag}&gt;" not in page] == []
    assert not re.search(r"<b>|<script>|<i>|<u>|<s>", page)


def test_the_lexical_overlap_of_pairs_is_shown_by_source_and_role():
    assert "Lexical overlap" not in rendered(FULL)
    overlap = {
        "positive": Metric(value=0.4305, count=10_000, of="pairs", seed=0),
        "negative": Metric(value=0.3203, count=9_871, of="pairs", seed=0),
    }
    sources = (SourceSummary("nli.parquet", 275_000, overlap=overlap), SourceSummary("wiki.parquet", 100))
    shown = words(replace(FULL, sources=sources))
    _, table = shown.split("Lexical overlap")
    table = table.split("Mean F1")[0]
    assert "nli.parquetpositive0.4310,000nli.parquetnegative0.329,871" in table
    assert "wiki.parquet" not in table


def test_rows_left_out_without_a_text_are_counted():
    assert "without a text" not in rendered(FULL)
    page = rendered(
        replace(FULL, sources=(SourceSummary("augmented/main/00000001.json", 6_512, 112, missing=400),))
    )
    assert "without a text" in page
    assert "6,000 rows" in page
