"""The page of an augmented corpus is well-formed, explains every reason, and warns of problems."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.augment.keep import REASONS
from pipeline.report.augmentation import charts, meaning, render, verdict, warnings
from pipeline.report.augmentation_report import (
    AugmentationReport,
    AugmentedExample,
    ExampleVariant,
    RejectedVariant,
    VariantSample,
)
from pipeline.report.formats import mark_changes, proportion
from tests.report.pages import HostileTexts, Page, assert_shown_as_text
from tests.report.variants import FULL, LOOSE, SMALLEST, report_with_counts


def words(report: AugmentationReport) -> str:
    return " ".join(Page(render(report)).words.split())


@pytest.mark.parametrize(
    "report",
    [
        SMALLEST,
        FULL,
        replace(FULL, sample=VariantSample()),
        report_with_counts(kept=0, **{f"reason_{number}": 1 for number in range(12)}),
        report_with_counts(kept=5),
        report_with_counts(identical=5),
    ],
    ids=["smallest", "full", "unread", "many reasons", "all", "none"],
)
def test_the_page_is_well_formed_and_self_contained(report: AugmentationReport):
    page = render(report)
    parsed = Page(page)
    assert not parsed.links
    assert "script" not in parsed.names
    assert not re.search(r"https?:|@import|url\(", page)
    assert page == render(report)


def test_the_page_shows_all_results():
    shown = words(FULL)
    expected = [
        (
            "2,830 of 3,000 variants are kept, 94.3 %; 3 variants were made of each of 1,000 texts. "
            "Rejected most often as unlike (100), alike (60), duplicate (10)."
        )
    ]
    expected += [
        "s3://a/augmented/main/00000003.json",
        "s3://texts/*.parquet",
        "in 4 units; 7 quarantined",
        "99.5 % with two or more",
        "3 min 4 s",
        "some/encoder",
    ]
    expected += [
        "Since number 2",
        "5 new, 2 changed, 1 deleted rows",
        "unlike 10 %, alike 6 %",
        "cosine with its text below 0.6",
        "a<b",
        "six",
        "back translation",
    ]
    expected += [
        "5002530035025 %20 s",
        "nothing new",
        "a <b>man</b> reads",
        "rejected: duplicate",
        "dog runs cat sleeps",
        "none was made",
    ]
    expected += ["an empty text", "Of all rows"]
    assert [each for each in expected if each not in shown.replace("\u00a0", " ")] == []
    assert [chart.heading for chart in charts(FULL)] == [
        "de: cosine with the text",
        "de: length",
        "cut: length",
    ]


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (SMALLEST, "The corpus has no rows: nothing was made."),
        (
            report_with_counts(kept=1_000),
            "1,000 of 1,000 variants are kept, 100 %; one was made of each of 1,000 texts. "
            "None was rejected.",
        ),
        (
            report_with_counts(kept=999, too_long_for_model=1),
            "999 of 1,000 variants are kept, 99.9 %; one was made of each of 1,000 texts. "
            "All others are rejected as too long for model (1).",
        ),
    ],
)
def test_the_summary_says_how_many_variants_are_kept(report: AugmentationReport, expected: str):
    assert verdict(report).replace("\u00a0", " ") == expected


def test_a_sample_is_described_as_one():
    assert "Of 900 rows, those of some units" in words(replace(FULL, sample=replace(FULL.sample, rows=900)))


def test_every_reason_is_explained_with_its_limits():
    reasons = (*REASONS, "too_long_for_model", "no_source")
    report = replace(report_with_counts(), counts={"de": dict.fromkeys(reasons, 1)})
    meanings = {reason: meaning(reason, report) for reason in reasons}
    assert len(set(meanings.values())) == len(reasons)
    assert "a reason specific to the method" not in meanings.values()
    expected = {
        "too_short": "0.4",
        "too_long": "1.7",
        "unlike": "0.6",
        "alike": "0.98",
        "language": "en",
        "repetition": "the same 4 words more than once",
    }
    assert {reason: bound for reason, bound in expected.items() if bound not in meanings[reason]} == {}
    assert meaning("bored", report) == "a reason specific to the method"


def test_limits_of_all_methods_are_listed():
    counts = {"de": {"too_long": 1}, "cut_1": {"too_long": 2}, "cut_2": {}}
    assert (
        meaning("too_long", replace(FULL, counts=counts))
        == "longer than 1.7 or 2 times its text, in characters"
    )
    assert (
        meaning("too_long", replace(FULL, counts=counts | {"cut_1": {}}))
        == "longer than 1.7 times its text, in characters"
    )


def test_a_good_augmentation_has_no_warning():
    assert list(warnings(FULL)) == []
    assert list(warnings(SMALLEST)) == []


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (
            replace(FULL, sample=replace(FULL.sample, texts_by_kept=(850, 0, 0))),
            "Only 85 % of the texts have a variant that is kept",
        ),
        (
            report_with_counts(kept=400, alike=150, unlike=450),
            "de: only 40 % of the variants are kept; most of the others are rejected as unlike.",
        ),
        (
            report_with_counts(kept=0, identical=5),
            "de: no variant is kept; most of the others are rejected as identical.",
        ),
        (
            report_with_counts(kept=700, identical=300),
            "de: 30 % of the variants are equal to their text. Sample (decoding.method: sample)",
        ),
        (
            report_with_counts("crop", kept=700, identical=300),
            "de: 30 % of the variants are equal to their text. Set stronger edits.",
        ),
        (
            report_with_counts(kept=950, too_long_for_model=50),
            "de: 5 % of the texts are longer than the model reads",
        ),
        (
            report_with_counts(kept=700, duplicate=300),
            "de: 30 % of the variants are equal to another variant",
        ),
        (
            report_with_counts(kept=700, language=300),
            "de: 30 % of the variants are identified as another language.",
        ),
        (report_with_counts(kept=1_000, keep=LOOSE), "de: the language of the variants was not checked"),
    ],
)
def test_problems_are_warned_about(report: AugmentationReport, expected: str):
    found = [warning.replace("\u00a0", " ") for warning in warnings(report)]
    assert any(warning.startswith(expected) for warning in found), found


def test_equal_warnings_of_several_labels_are_merged():
    counts = {
        "cut_1": {"kept": 9, "too_long_for_model": 1},
        "cut_2": {"kept": 8, "identical": 1, "too_long_for_model": 1},
    }
    report = replace(FULL, counts=counts, methods=FULL.methods[1:])
    (expected,) = warnings(report)
    assert expected.startswith("cut_1, cut_2: 10\u00a0% of the texts are longer")


def test_added_words_are_marked_and_removed_words_struck_through():
    text, variant = "Two men and <one> dog.", "two, men & <one> cat!"
    assert (
        mark_changes(variant, text)
        == "two, men <del>and</del> <mark>&amp;</mark> &lt;one&gt; <del>dog.</del> <mark>cat!</mark>"
    )
    assert mark_changes("a b", "a b") == "a b"
    assert mark_changes("", "<a> b") == "<del>&lt;a&gt; b</del>"


@given(*2 * [st.lists(st.sampled_from(["a", "B", "c.", "d"]), max_size=8).map(" ".join)])
def test_the_marked_variant_has_all_words_of_both_texts(text: str, variant: str):
    found = str(mark_changes(variant, text))
    kept = re.sub(r"<del>.*?</del>", " ", found)
    assert re.sub(r"</?mark>", "", kept).split() == variant.split()
    removed = re.sub(r"<mark>.*?</mark>", " ", found)
    assert [word.casefold() for word in re.sub(r"</?del>", "", removed).split()] == [
        word.casefold() for word in text.split()
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0 %"), (1e-5, "< 0.1 %"), (0.125, "12.5 %"), (0.99999, "> 99.9 %"), (1.0, "100 %")],
)
def test_a_proportion_is_0_or_100_percent_only_if_exact(value: float, expected: str):
    assert proportion(value).replace("\u00a0", " ") == expected


@pytest.mark.parametrize("field", ["name", "corpus", "uri", "encoder", "settings_text"])
def test_all_texts_are_escaped(field: str):
    hostile: dict[str, Any] = {field: "<script>alert(1)</script>"}
    assert_shown_as_text(render(replace(FULL, **hostile)), "<script>alert(1)</script>")


def test_texts_and_variants_of_the_sample_are_escaped():
    hostile = HostileTexts()
    variants = (
        ExampleVariant(hostile("label"), hostile("kept"), None),
        ExampleVariant("de", hostile("duplicate"), "duplicate"),
    )
    apart = {"unlike": (RejectedVariant("de", hostile("unlike"), hostile("original")),)}
    sample = VariantSample(1, (1,), (AugmentedExample(hostile("text"), variants),), apart)
    assert_shown_as_text(render(replace(FULL, sample=sample)), *hostile.shown)
