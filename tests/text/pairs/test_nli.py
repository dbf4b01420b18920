"""Each premise with both kinds of hypothesis gives one triple; a dictionary of all rows is the oracle."""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError
from pipeline.log import Stages
from pipeline.text.pairs.build import build_rows, open_build
from tests.text.pairs.building import Rows, build, settings_of

LABELS = ["entailment", "neutral", "contradiction", "-"]


def rows_of(*triples: tuple[str, str, str]) -> Rows:
    return [dict(zip(("premise", "hypothesis", "label"), triple, strict=True)) for triple in triples]


THREE_PREMISES = rows_of(
    ("A man sleeps.", "A man rests.", "entailment"),
    ("A dog runs.", "A dog sits.", "contradiction"),
    (" A man sleeps. ", "A man runs.", "contradiction"),
    ("A man sleeps.", "A man dreams.", "neutral"),
    ("A dog runs.", "An animal runs.", "entailment"),
    ("A cat eats.", "A cat is hungry.", "neutral"),
    ("A cat eats.", "An animal eats.", "entailment"),
)


def test_a_premise_with_an_entailed_and_a_contradicting_hypothesis_gives_a_triple(tmp_path: Path):
    assert sorted(build(tmp_path, "nli", THREE_PREMISES), key=str) == [
        {"anchor": "A dog runs.", "positive": "An animal runs.", "negative": "A dog sits."},
        {"anchor": "A man sleeps.", "positive": "A man rests.", "negative": "A man runs."},
    ]


def test_with_the_option_neutral_only_premises_with_a_neutral_hypothesis_give_a_row(tmp_path: Path):
    assert build(tmp_path, "nli", THREE_PREMISES, options={"neutral": True}) == [
        {
            "anchor": "A man sleeps.",
            "positive": "A man rests.",
            "negative": "A man runs.",
            "negative2": "A man dreams.",
        }
    ]


@settings(max_examples=25)
@given(rows=st.lists(st.tuples(st.sampled_from("pqrst"), st.sampled_from(LABELS)), min_size=1, max_size=40))
def test_every_triple_has_a_hypothesis_of_each_kind(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
):
    folder = tmp_path_factory.mktemp("nli")
    all_triples = [(premise, f"{premise} {number}", label) for number, (premise, label) in enumerate(rows)]
    hypotheses: dict[tuple[str, str], set[str]] = {}
    for premise, hypothesis, label in all_triples:
        hypotheses.setdefault((premise, label), set()).add(hypothesis)
    complete = {
        premise
        for premise in "pqrst"
        if {(premise, "entailment"), (premise, "contradiction")} <= hypotheses.keys()
    }
    if not complete:
        with pytest.raises(DataError):
            build(folder, "nli", rows_of(*all_triples))
        return
    found = build(folder, "nli", rows_of(*all_triples))
    assert sorted(row["anchor"] for row in found) == sorted(complete)
    for row in found:
        assert row["positive"] in hypotheses[row["anchor"], "entailment"]
        assert row["negative"] in hypotheses[row["anchor"], "contradiction"]


def test_equal_texts_make_no_triple(tmp_path: Path):
    rows = rows_of(
        ("p", "p", "entailment"),
        ("p", "no", "contradiction"),
        ("q", "same", "entailment"),
        ("q", "same", "contradiction"),
        ("r", "yes", "entailment"),
        ("r", "no", "contradiction"),
        ("s", "", "entailment"),
        ("s", "no", "contradiction"),
    )
    assert build(tmp_path, "nli", rows) == [{"anchor": "r", "positive": "yes", "negative": "no"}]
    _, built = build_rows(open_build(settings_of(tmp_path, "nli")), Stages())
    assert built.counts["triples_with_equal_texts"] == 2
    assert (built.counts["blank_hypothesis"], built.counts["premises_without_every_label"]) == (1, 1)


def test_labels_without_entailment_and_contradiction_are_refused(tmp_path: Path):
    data = {"uri": str(tmp_path / "data"), "values": {"labels": ["yes", "no"]}}
    with pytest.raises(ConfigError, match="labels that include entailment, contradiction, found yes, no"):
        build(tmp_path, "nli", rows_of(("p", "h", "yes"), ("p", "g", "no")), data=data)


@pytest.mark.skipif("MANTA_EVAL_DATA" not in os.environ, reason="needs the evaluation data")
def test_triples_of_snli_match_a_count_of_its_premises(tmp_path: Path):
    source = Path(os.environ["MANTA_EVAL_DATA"]) / "nli" / "snli.parquet"
    table = pq.read_table(source)
    labels_of_premise: dict[str, set[int]] = {}
    for premise, label in zip(table["premise"].to_pylist(), table["label"].to_pylist(), strict=True):
        labels_of_premise.setdefault(premise, set()).add(label)
    _, built = build_rows(open_build(settings_of(tmp_path, "nli", data=str(source))), Stages())
    equal = built.counts["triples_with_equal_texts"]
    assert equal < 10
    assert built.train.rows + equal == sum({0, 2} <= labels for labels in labels_of_premise.values())
