"""The limits that variants must keep, each alone and in their order; every rejected variant has a reason."""

import re
import unicodedata
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.augment.comparison import case_fold, repetitions, without_punctuation
from pipeline.augment.keep import REASONS, Candidates, JudgedVariants, judge
from pipeline.settings.augment import KeepSettings

# Every variant is kept that is not empty.
ALL = KeepSettings(identical=True, duplicates=True, length_ratio=None, repeats=None)
TEXT = "Two young men, outside, play with a wooden toy."
WORDS = st.sampled_from(
    [
        "toy",
        "Toy",
        "wooden",
        "very",
        "good",
        "a",
        "straße",
        "STRASSE",
        ",",
        ".",
        "?!",
        "don't",
        "\u00a0",
        "ﬁne",
        "x",
    ]
)
SENTENCES = st.lists(WORDS, min_size=0, max_size=9).map(" ".join)


def strings(values: list[str | None]) -> pa.Array:
    return pa.array(values, pa.large_string())


def rejection(text: str, variant: str | None, vectors: Any = None, **keep: Any) -> str | None:
    """Return the reason for which the variant is rejected; None if it is kept."""
    judged = judge(
        strings([text]),
        {"a": Candidates(strings([variant]), pa.nulls(1, pa.string()), ALL.model_copy(update=keep))},
        vectors,
    )
    return judged["a"].reasons[0].as_py()


def spelled(text: str) -> str:
    """Return the form by which texts are compared: an oracle, a character at a time."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(
        "".join(sign for sign in folded if not unicodedata.category(sign).startswith("P")).split()
    )


def counted(text: str, run: int) -> tuple[int, int]:
    """Count repeated neighbours and the most frequent run of words: an oracle by regular expressions."""
    pieces = re.findall(r"[^\W_]+|[^\w\s]", unicodedata.normalize("NFKC", text).casefold())
    words = [piece for piece in pieces if piece.isalnum()]
    runs = Counter(tuple(words[index : index + run]) for index in range(len(words) - run + 1))
    return sum(a == b and a.isalnum() for a, b in pairwise(pieces)), max(runs.values(), default=0)


@given(st.lists(SENTENCES, min_size=1, max_size=6), st.integers(1, 4))
def test_comparable_texts_and_repetitions_equal_plain_python(texts: list[str], run: int):
    assert without_punctuation(case_fold(strings(texts))).to_pylist() == [spelled(text) for text in texts]
    words, runs = repetitions(case_fold(strings([text or "x" for text in texts])), run)
    assert list(zip(words.tolist(), runs.tolist(), strict=True)) == [
        counted(text or "x", run) if text.strip() else (0, int(run == 1)) for text in texts
    ]


@pytest.mark.parametrize(
    ("variant", "keep", "reason"),
    [
        ("Two young men play outside with a toy of wood.", {}, None),
        (None, {}, "empty"),
        ("", {}, "empty"),
        (" \u00a0\n", {}, "empty"),
        (" . ...", {}, "empty"),
        ("two  young MEN outside play with a wooden toy", {}, None),
        ("two  young MEN outside play with a wooden toy", {"identical": False}, "identical"),
        ("Two young women, outside, play with a wooden toy.", {"identical": False}, None),
        ("Two men play", {"length_ratio": (0.5, 2)}, "too_short"),
        ("Two men play", {"length_ratio": (12 / 47, 2)}, None),
        ("x" * 94, {"length_ratio": (0.5, 2)}, None),
        ("x" * 95, {"length_ratio": (0.5, 2)}, "too_long"),
        ("Two men play with a wooden toy toy .", {"repeats": 2}, "repetition"),
        ("Two men play with a wooden toy Toy.", {"repeats": 9}, "repetition"),
        ("Two men play with a toy, toy of wood.", {"repeats": 2}, None),
        ("a toy and a toy and a toy and a ball", {"repeats": 2, "repeat_words": 2}, "repetition"),
        ("a toy and a toy and a toy and a ball", {"repeats": 3, "repeat_words": 2}, None),
        ("a toy and a toy and a ball", {"repeats": 2, "repeat_words": 3}, None),
        ("a toy and a toy and a toy and a toy", {"repeats": 2, "repeat_words": 3}, "repetition"),
    ],
)
def test_each_limit_has_its_reason_of_rejection(
    variant: str | None, keep: dict[str, Any], reason: str | None
):
    assert rejection(TEXT, variant, **keep) == reason


@pytest.mark.parametrize(
    ("text", "variant", "reason"),
    [
        ("A very very good day.", "A Very very good day", None),
        ("A very very good day.", "A really, a really really nice day", None),
        ("A very very good day.", "A very very very good day", "repetition"),
        ("no no no, no no no, no no no, no no no", "no no no. no no no. no no no. no no no.", None),
        ("I like this. It is good.", "I like it. It is good.", None),
    ],
)
def test_variant_may_repeat_as_much_as_its_text(text: str, variant: str, reason: str | None):
    assert rejection(text, variant, repeats=2) == reason


def test_punctuation_may_be_a_variant_of_punctuation():
    assert rejection("?!", "!?") is None
    assert rejection("?!", "!?", identical=False) == "identical"


def angles(texts: list[str]) -> np.ndarray:
    """Return a vector for each text, at its angle in degrees and of any length; NaN if it is not a number."""
    degrees = np.array([float(text) if text.isdigit() else np.nan for text in texts])
    return (
        np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], 1)
        * (1 + np.arange(len(texts)))[:, None]
    )


@pytest.mark.parametrize(
    ("variant", "reason"),
    [("30", None), ("60", None), ("61", "unlike"), ("29", "alike"), ("180", "unlike"), ("none", "unlike")],
)
def test_cosines_at_the_bounds_are_kept(variant: str, reason: str | None):
    bounds = (np.cos(np.pi / 3) - 1e-12, np.cos(np.pi / 6) + 1e-12)
    assert rejection("0", variant, angles, similarity=bounds) == reason


def test_equal_texts_have_similarity_one():
    assert rejection("45", "45", angles, similarity=(0.5, 1.0)) is None


def test_encoder_is_called_once_with_distinct_texts_of_remaining_variants():
    asked = []

    def vectors(texts: list[str]) -> np.ndarray:
        asked.append(texts)
        return angles(texts)

    bounded = ALL.model_copy(update={"similarity": (0.5, 0.99), "identical": False})
    none = pa.nulls(4, pa.string())
    made = {
        "a": Candidates(strings(["20", "10", None, "90"]), none, bounded),
        "b": Candidates(strings(["30", "20", "20", "33"]), none, bounded),
        "c": Candidates(strings(["77", "78", "79", "80"]), none, ALL),
    }
    judged = judge(strings(["10", "10", "0", "44"]), made, vectors)
    assert asked == [["10", "44", "20", "90", "0", "30", "33"]]
    assert judged["a"].reasons.to_pylist() == [None, "identical", "empty", None]
    assert judged["a"].similarity.to_pylist() == pytest.approx(
        [np.cos(np.radians(10)), None, None, np.cos(np.radians(46))], abs=1e-6
    )
    assert judged["b"].similarity.to_pylist() == pytest.approx(
        [np.cos(np.radians(degrees)) for degrees in (20, 10, 20, 11)], abs=1e-6
    )
    assert judged["c"].similarity.null_count == 4


def test_encoder_is_not_called_without_remaining_variants():
    assert rejection("a", "a", None, similarity=(0, 1), identical=False) == "identical"


def test_first_of_equal_variants_is_kept():
    none, keep = pa.nulls(4, pa.string()), ALL.model_copy(update={"duplicates": False})
    made = {
        "a": Candidates(
            strings(["one", "one", "two two", "one"]), none, keep.model_copy(update={"repeats": 2})
        ),
        "b": Candidates(strings(["One!", "two", "two two", "two"]), none, keep),
        "c": Candidates(strings(["one", "two", "two two", "x"]), none, ALL),
        "d": Candidates(strings(["three", "ONE", "Two two", "two."]), none, keep),
    }
    judged = judge(strings(["a b c", "a b c", "a b c", "a b c"]), made)
    assert judged["b"].reasons.to_pylist() == ["duplicate", None, None, None]
    assert judged["c"].reasons.to_pylist() == [None, None, None, None]  # these settings keep duplicates
    assert judged["d"].reasons.to_pylist() == [None, "duplicate", "duplicate", "duplicate"]


def test_reason_of_the_method_is_kept():
    made = {
        "a": Candidates(
            strings([None, "half a sent", "fine"]),
            pa.array(["too_long_for_model", "cut_off", None]),
            KeepSettings(identical=True),
        )
    }
    judged = judge(strings(["long", "a sentence", "fine"]), made)["a"]
    assert judged.reasons.to_pylist() == ["too_long_for_model", "cut_off", None]
    assert judged.rejected.to_pylist() == [None, "half a sent", None]
    assert judged.counts() == {"kept": 1, "cut_off": 1, "too_long_for_model": 1}


def language(text: str, variant: str, *among: str) -> str | None:
    return rejection(text, variant, language="en", languages=among)


def test_variant_in_another_language_is_rejected():
    pytest.importorskip("py3langid")
    assert language(TEXT, "Zwei junge Männer spielen draußen mit einem Spielzeug.", "en", "de") == "language"
    assert language(TEXT, "Two young men are playing outside with a wooden toy.", "en", "de") is None
    assert language(TEXT, "Deux jeunes hommes jouent dehors avec un jouet.") == "language"


@given(
    st.lists(
        st.tuples(
            SENTENCES, st.none() | SENTENCES, st.none() | SENTENCES, st.none() | st.just("too_long_for_model")
        ),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, (0.5, 2.0)]),
    st.sampled_from([None, 1, 2]),
)
def test_every_rejection_has_a_reason_and_rows_are_independent(
    rows: list[Any], identical: bool, duplicates: bool, ratio: Any, repeats: Any
):
    keep = KeepSettings(
        identical=identical, duplicates=duplicates, length_ratio=ratio, repeats=repeats, similarity=(0.1, 0.9)
    )
    texts, left, right, own = (list(column) for column in zip(*rows, strict=True))

    def judge_rows(part: slice) -> dict[str, JudgedVariants]:
        reasons, none = pa.array(own[part], pa.string()), pa.nulls(len(own[part]))
        made = {
            "a": Candidates(strings(left[part]), reasons, keep),
            "b": Candidates(strings(right[part]), none, keep),
        }
        return judge(
            strings(texts[part]),
            made,
            lambda asked: np.array([[len(text), text.count("o"), 1] for text in asked], float),
        )

    judged = judge_rows(slice(None))
    alone = [judge_rows(slice(index, index + 1)) for index in range(len(rows))]
    for label, given_variants in (("a", left), ("b", right)):
        columns = [
            getattr(judged[label], name).to_pylist() for name in ("kept", "rejected", "reasons", "similarity")
        ]
        assert columns == [
            [getattr(each[label], name)[0].as_py() for each in alone]
            for name in ("kept", "rejected", "reasons", "similarity")
        ]
        for variant, kept, rejected, reason in zip(given_variants, *columns[:3], strict=True):
            assert (kept, rejected) == ((variant, None) if reason is None else (None, variant))
            assert reason in (None, "too_long_for_model", *REASONS)
        assert sum(judged[label].counts().values()) == len(rows)


@pytest.mark.parametrize("rows", [0, 1])
def test_types_do_not_depend_on_the_number_of_rows(rows: int):
    judged = judge(
        strings(["a b"] * rows),
        {"a": Candidates(pa.array(["b a"] * rows, pa.string()), pa.nulls(rows), KeepSettings())},
    )["a"]
    assert [judged.kept.type, judged.rejected.type] == [pa.large_string()] * 2
    assert (judged.reasons.type, judged.similarity.type) == (pa.string(), pa.float32())
