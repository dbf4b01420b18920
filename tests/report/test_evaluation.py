"""The page of an evaluation is well-formed, shows scores and missing tasks, and escapes all texts."""

import re
from dataclasses import replace

import pytest
from markupsafe import Markup

from pipeline.evaluate.bootstrap import ScoreEstimate
from pipeline.report.evaluation import difference_chart, groups, question, render, split_facts, verdict
from pipeline.report.evaluation_report import (
    AverageRow,
    Chart,
    DifferingPair,
    Disagreement,
    EvaluatedCandidate,
    EvaluationReport,
    Section,
    TaskRow,
)
from tests.report.pages import HostileTexts, Page, assert_shown_as_text

NOW = EvaluatedCandidate(
    "release 41",
    "out/releases/encoders/e",
    384,
    "5face" * 8,
    "whitening to 381 components",
    "7a57e" * 8,
    {"c0ffee" * 6: 15_192},
    90_870_000,
    381,
    312.4,
)
NEW = EvaluatedCandidate("models/new", "models/new", 384, "0dd" * 12)
ROW = TaskRow(
    "STS12",
    "sts",
    "Spearman x100, cosine, all",
    3108,
    (ScoreEstimate(72.37, 70.12, 74.4), ScoreEstimate(75.06, 73.3, 76.6)),
    (None, ScoreEstimate(2.69, 1.64, 3.65)),
    {"Pearson all": (74.1, 76.2), "Spearman of MSRpar": (58.0, None)},
    {"similarity": "cosine"},
    {"threshold accuracy": ("0.7312", "")},
    "Correlation of similarities with human scores.",
)
EVEN = replace(ROW, task="STS13", differences=(None, ScoreEstimate(-0.4, -1.0, 0.2)))
PLAIN = replace(
    ROW,
    task="search",
    kind="retrieval",
    metric="nDCG@10 x100",
    scores=(ScoreEstimate(40.0), ScoreEstimate(None)),
    differences=(None, ScoreEstimate(None)),
    further_metrics={},
    shared_facts={},
    description="Texts that belong to a query; 100 means that they are always first.",
)
SMALLEST = EvaluationReport(
    root="/srv/evaluations",
    id="ab" * 12,
    candidates=(NOW,),
    rows=(replace(ROW, scores=(ScoreEstimate(72.37),), differences=(None,), further_metrics={}),),
)
FULL = EvaluationReport(
    root="/srv/evaluations",
    id="ab" * 12,
    created="2026-01-02 03:04 UTC",
    candidates=(NOW, NEW),
    rows=(ROW, EVEN, PLAIN),
    resamples=1000,
    averages=(
        AverageRow(
            "average of the 2 measured: STS12, STS13", ("STS12", "STS13"), False, ROW.scores, ROW.differences
        ),
    ),
    missing=(("STS14", "no file sts/STS14.parquet"),),
    warnings=("STS13: every pair of FNWN has the same similarity",),
    disagreements=(
        Disagreement(
            "STS12",
            "release 41",
            "models/new",
            (DifferingPair("a dog runs", "a cat <b>", "4.2", (0.91, -0.2), (0.99, 0.125)),),
        ),
    ),
    sections=(
        Section(
            "Geometry",
            (Chart("Spectrum", Markup("<svg></svg>"), "flat"),),
            (("", "now"), ("anisotropy", "0.1")),
            ("2,000 sentences",),
        ),
    ),
    settings="evaluate:\n  tasks: a<b\n",
    packages={"torch": "2.13.0"},
)


def words(report: EvaluationReport) -> str:
    return " ".join(Page(render(report)).words.split())


def test_the_heading_asks_how_good_or_which_is_better_and_scores_answer() -> None:
    assert question(FULL) == "Is models/new better than release 41?"
    assert verdict(FULL)[0].startswith("Compared with release 41, models/new is better on 1, ")
    assert question(replace(FULL, candidates=(NOW, NEW, NEW))) == "Which of 3 candidates is the best?"
    alone = replace(FULL, candidates=(NEW,), rows=(ROW, replace(ROW, scores=(ScoreEstimate(60.0),)), PLAIN))
    assert question(alone) == "How good is models/new?"
    assert verdict(alone) == [
        "Spearman x100, cosine, all: 60.00 to 72.37.",
        "nDCG@10 x100: 40.00.",
        "Measured on 3 tasks.",
    ]


@pytest.mark.parametrize(
    "report",
    [SMALLEST, FULL, replace(FULL, candidates=(NOW, NEW, NEW), rows=(), averages=())],
    ids=["smallest", "full", "three"],
)
def test_the_page_is_well_formed_and_self_contained(report: EvaluationReport):
    page = render(report)
    parsed = Page(page)
    assert not parsed.links
    assert "script" not in parsed.names
    assert not re.search(r"https?:|@import|url\(", page)
    assert page == render(report)


def test_the_page_shows_scores_intervals_and_missing_tasks():
    shown = words(FULL)
    expected = [
        "release 41 and models/new",
        "72.37",
        "70.12 to 74.40",
        "+2.69",
        "+1.64 to +3.65",
        "−0.40",
        "−1.00 to +0.20",
        "3,108",
        "1,000 resamples",
    ]
    expected += [
        "not defined",
        "STS14: no file",
        "every pair of FNWN",
        "average of the 2 measured: STS12, STS13",
        "Spearman of MSRpar",
        "58.00",
        "nDCG@10",
    ]
    expected += [
        "anisotropy",
        "2,000 sentences",
        (
            "Compared with release 41, models/new is better on 1, not significantly different on 1, "
            "without an interval on 1."
        ),
    ]
    expected += ["human scores", "they are always first"]
    assert [text for text in expected if text not in shown] == []


def test_the_page_shows_candidates_and_pairs_on_which_they_differ():
    shown = words(FULL)
    expected = [
        "threshold accuracy",
        "0.7312",
        "90.9 MB of files; 1.52 kB for a vector in float32",
        "312 sentences/s on one worker",
        "not measured",
    ]
    expected += [
        "Pairs on which candidates differ most",
        "a dog runs",
        "a cat <b>",
        "4.2",
        "0.91",
        "rank 99 %",
        "−0.20",
        "rank 12.5 %",
    ]
    expected += ["whitening to 381 components", "15,192 sentences", "2.13.0"]
    assert [text for text in expected if text not in shown] == []


def test_tasks_are_grouped_by_metric():
    shown = groups(replace(FULL, rows=(ROW, PLAIN, EVEN)))
    assert [
        (group.metric, [row.task for row in group.rows], group.chart is not None, len(group.averages))
        for group in shown
    ] == [("Spearman x100, cosine, all", ["STS12", "STS13"], True, 1), ("nDCG@10 x100", ["search"], False, 0)]


def test_the_common_part_of_metrics_is_the_heading_of_a_group():
    named = {"MR": "10 folds", "SST2": "test part"}
    folds, parts = (
        replace(ROW, task=task, kind="transfer", metric=f"accuracy x100, lbfgs, {protocol}")
        for task, protocol in named.items()
    )
    (group,) = groups(
        replace(
            FULL,
            rows=(folds, parts),
            averages=(AverageRow("mean", ("MR", "SST2"), True, ROW.scores, ROW.differences),),
        )
    )
    assert (group.metric, group.metric_details, len(group.averages)) == (
        "accuracy x100, lbfgs",
        ("10 folds", "test part"),
        1,
    )
    assert [group.metric_details for group in groups(FULL)] == [("", ""), ("",)]
    assert "10 folds" in words(replace(FULL, rows=(folds, parts), averages=()))


def test_without_intervals_there_is_no_chart():
    count = replace(
        PLAIN,
        metric="pairs of at least 0.9",
        scores=(ScoreEstimate(15.0), ScoreEstimate(19.0)),
        differences=(None, ScoreEstimate(4.0)),
    )
    with_interval, without_interval = groups(replace(FULL, rows=(ROW, count), averages=()))
    assert (with_interval.has_intervals, without_interval.has_intervals, without_interval.chart) == (
        True,
        False,
        None,
    )
    assert "resamples" not in words(replace(FULL, rows=(count,), averages=()))


def test_one_candidate_has_no_differences():
    assert "difference" not in words(SMALLEST).lower()
    assert "interval" not in words(SMALLEST)


def test_dots_are_right_of_zero_if_better_and_within_their_interval():
    chart = difference_chart(
        [("STS12", [ScoreEstimate(2.0, 1.0, 3.0)]), ("STS13", [ScoreEstimate(-1.0)])],
        "Spearman x100",
    )
    zero = float(re.search(r'class="zero" x1="([\d.]+)"', chart)[1])  # type: ignore[index]
    better, worse = (float(x) for x in re.findall(r'cx="([\d.]+)"', chart))
    low, high = (
        float(re.search(rf'class="interval c0" .*?{end}="([\d.]+)"', chart)[1]) for end in ("x1", "x2")
    )  # type: ignore[index]
    assert worse < zero < low < better < high
    assert better - zero == pytest.approx(2 * (zero - worse), abs=0.3)
    assert Page(str(chart)).names >= {"svg", "circle", "line"}


def test_all_texts_are_escaped():
    hostile = HostileTexts(" & \ud800")
    pair = DifferingPair(hostile("left"), hostile("right"), hostile("gold"), (0.91, -0.2), (0.99, 0.125))
    page = render(
        replace(
            FULL,
            candidates=(
                replace(
                    NOW,
                    name=hostile("candidate"),
                    encoder=hostile("encoder"),
                    transform=hostile("transform"),
                ),
                NEW,
            ),
            rows=(
                replace(
                    ROW,
                    task=hostile("task"),
                    metric=hostile("metric"),
                    description=hostile("description"),
                    further_metrics={hostile("further metric"): (1.0, 2.0)},
                    shared_facts={hostile("fact"): hostile("value")},
                    differing_facts={hostile("differing fact"): (hostile("own value"), "")},
                ),
            ),
            averages=(),
            disagreements=(Disagreement(hostile("other task"), hostile("one"), hostile("other"), (pair,)),),
            missing=((hostile("missing task"), hostile("reason")),),
            warnings=(hostile("warning"),),
            settings=hostile("settings"),
            packages={hostile("package"): hostile("version")},
            sections=(
                Section(
                    hostile("heading"),
                    notes=(hostile("note"),),
                    table=((hostile("column"),), (hostile("cell"),)),
                ),
            ),
        )
    )
    assert_shown_as_text(page, *hostile.shown)
    page.encode("utf-8")  # no lone surrogate is left


def test_facts_are_formatted_as_text():
    facts = {
        "solver": "lbfgs",
        "subsets": {"MSRpar": 750, "MSRvid": 1750},
        "strengths": [0.25, 2.0],
        "without_gold": 0,
        "nothing": None,
        "none": {},
    }
    shared = {
        "solver": "lbfgs",
        "subsets": "MSRpar 750, MSRvid 1,750",
        "strengths": "0.25, 2",
        "without gold": "0",
    }
    assert split_facts([facts]) == (shared, {})
    other = facts | {"threshold_f1": 0.5}
    assert split_facts([facts, other, facts | {"threshold_f1": 0.25}]) == (
        shared,
        {"threshold f1": ("", "0.5", "0.25")},
    )
