"""Each premise with both kinds of hypothesis gives one triple; a dictionary of all rows is the oracle."""

import os
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError
from pipeline.settings.training import OrderSettings, PairSettings, Values
from pipeline.store.store import open_store
from pipeline.text.rows.batches import rank_rows
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.pairs import open_training_rows
from tests.benchmarks.nli_triples import write_triples

NLI = ["premise", "hypothesis", "label"]
LABELS = ["entailment", "neutral", "contradiction", "-"]


def inference(place: Path, rows: list[tuple[str, str, str]]) -> PairSettings:
    pq.write_table(
        pa.table(dict(zip(NLI, zip(*rows, strict=True), strict=True))),
        place / "nli.parquet",
        row_group_size=5,
    )
    return PairSettings(uri=str(place / "nli.parquet"))


@given(rows=st.lists(st.tuples(st.sampled_from("pqrst"), st.sampled_from(LABELS)), min_size=1, max_size=40))
def test_triples_take_the_first_hypothesis_of_each_kind(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
):
    place = tmp_path_factory.mktemp("nli")
    whole = [(premise, f"{premise} {row}", label) for row, (premise, label) in enumerate(rows)]
    firsts: dict[tuple[str, str], str] = {}
    for premise, hypothesis, label in whole:
        firsts.setdefault((premise, label), hypothesis)
    expected = {
        (premise, firsts[premise, "entailment"], firsts[premise, "contradiction"])
        for premise in "pqrst"
        if {(premise, "entailment"), (premise, "contradiction")} <= firsts.keys()
    }
    source = inference(place, whole)
    if not expected:
        with pytest.raises(DataError):
            write_triples(open_training_rows(source, NLI), open_store(place), "triples.parquet")
        return
    assert write_triples(open_training_rows(source, NLI), open_store(place), "made/triples.parquet") == len(
        expected
    )
    found = open_training_rows(PairSettings(uri=str(place / "made")), ["anchor", "positive"], ["negative"])
    table = pa.concat_tables(found.read(found.spans())).to_pydict()
    assert sorted(zip(table["anchor"], table["positive"], table["negative"], strict=True)) == sorted(expected)


def test_labels_without_entailment_and_contradiction_are_refused(tmp_path: Path):
    source = inference(tmp_path, [("p", "h", "yes"), ("p", "g", "no")])
    pairs = open_training_rows(source.model_copy(update={"values": Values(labels=("yes", "no"))}), NLI)
    with pytest.raises(ConfigError, match="labels that include entailment and contradiction, found yes, no"):
        write_triples(pairs, open_store(tmp_path), "triples.parquet")


@pytest.mark.skipif("MANTA_EVAL_DATA" not in os.environ, reason="needs the evaluation data")
def test_triples_of_snli_match_a_count_of_its_premises(tmp_path: Path):
    source = Path(os.environ["MANTA_EVAL_DATA"]) / "nli" / "snli.parquet"
    table = pq.read_table(source)
    kinds: dict[str, set[int]] = {}
    for premise, label in zip(table["premise"].to_pylist(), table["label"].to_pylist(), strict=True):
        kinds.setdefault(premise, set()).add(label)
    count = write_triples(
        open_training_rows(PairSettings(uri=str(source)), NLI), open_store(tmp_path), "triples.parquet"
    )
    assert count == sum({0, 2} <= found for found in kinds.values())
    pairs = open_training_rows(PairSettings(uri=str(tmp_path)), ["anchor", "positive"], ["negative"])
    repeated = {}
    for what in ("keep", "drop"):
        order = ShuffledOrder(pairs, OrderSettings(batch_rows=512, repeats=what))
        repeated[what] = sum(
            one.counts["repeated"] for one in islice(rank_rows(order, 0), order.steps_per_epoch)
        )
    assert repeated["drop"] < 0.1 * repeated["keep"]
