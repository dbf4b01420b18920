"""A training is planned, and every error in its settings and rows is reported, before a worker starts."""

from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.flows.train.plan import Plan, plan_of
from pipeline.log import listening
from pipeline.text.rows.batches import RankSlice, rank_rows
from pipeline.text.rows.neighbours import NeighbourOrder
from tests.flows.train.training import training_job, write_sentences


def plan(folder: Path, *overrides: str) -> Plan:
    """Plan a training with batches of 8 rows over the 96 sentences of the folder, or over others there."""
    return plan_of(training_job(folder, folder / "encoder", *overrides).train)


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ((), 12),
        (("train.epochs=2.5",), 30),
        (("train.epochs=0.001",), 1),
        (("train.max_steps=5",), 5),
        (("train.max_steps=50",), 12),
        (("train.order.batch_rows=36",), 2),
    ],
)
def test_steps_follow_from_rows_epochs_and_batch(tmp_path: Path, overrides: tuple[str, ...], steps: int):
    found = plan(tmp_path, *overrides)
    assert found.steps == steps
    assert found.counts == ({"rows": 96, "unlabelled": 0, "missing": 0},)


@pytest.mark.parametrize("rows", [17, 31, 96, 97])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_rank_has_equally_many_rows_and_steps(tmp_path: Path, rows: int, workers: int):
    write_sentences(tmp_path / "sentences.parquet", rows)
    found = plan(tmp_path, "train.epochs=3", f"train.workers={workers}")
    assert found.steps == 3 * (rows // 8)
    streams = [rank_rows(found.order, 0, RankSlice(rank, workers)) for rank in range(workers)]
    for _ in range(found.steps):
        assert {len(next(stream)) for stream in streams} == {8 // workers}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.data=[]",), "train.data: expected files"),
        (("train.objective=simcs",), "did you mean 'simcse'"),
        (("train.objective={name: simcse, options: {temprature: 1}}",), "did you mean 'temperature'"),
        (("train.schedule.name=stairs",), "train.schedule.stairs: expected steps, .*, found none"),
        (("train.schedule.final=1",), "train.schedule.final: expected at most the 0.001 .*, found 1"),
        (("train.schedule.name=plateau",), "train.schedule plateau: expected a file to measure on"),
        (
            ("train.dev.measure=accuracy",),
            (
                "train.dev.measure accuracy: expected a score that the first objective has: simcse has "
                "spearman, found a score of classification, r_drop, sequence_classification"
            ),
        ),
        (
            ("train.order.batch_rows=1",),
            "train.order.batch_rows: expected 2 rows or more, since simcse compares them, found 1",
        ),
        (("train.workers=3",), "that 3 workers can share equally, found 8"),
        (
            ("train.objective={name: cert, options: {queue: 7, pairs: false}}",),
            "queue of cert: expected at least 8, the number of keys of a batch, found 7",
        ),
        (
            (
                "train.objective={name: cert, options: {pairs: false}}",
                "train.workers=2",
                "train.across_ranks=false",
            ),
            "train.across_ranks: expected true, because the queue of cert",
        ),
        (
            ("train.workers=8", "train.across_ranks=false"),
            r"batch_rows / train.workers \(rows per rank\): expected 2 rows or more",
        ),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, overrides: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        plan(tmp_path, *overrides)


def test_blended_sources_without_a_column_that_others_have_are_reported(tmp_path: Path):
    columns = {"anchor": list("abcdefgh"), "positive": list("ijklmnop")}
    for name, more in (("pairs", {}), ("triples", {"negative": list("qrstuvwx")})):
        pq.write_table(pa.table(columns | more), tmp_path / f"{name}.parquet")
    blend = ("train.objective=supervised", "train.mixing=blend")
    for names, count in ((("triples", "triples"), 0), (("triples", "pairs"), 1), (("pairs", "triples"), 1)):
        data = ", ".join(str(tmp_path / f"{name}.parquet") for name in names)
        with listening() as heard:
            order = plan(tmp_path, f"train.data=[{data}]", *blend).order
        assert [line.rpartition(" role ")[2] for line in heard] == count * ["negative, so it is not used"]
        assert ("negative" in next(order.batches(0)).table.column_names) == (count == 0)


@pytest.mark.parametrize(
    ("objective", "rows", "warning"),
    [
        ("simcse", {"text": ["one"] * 5 + list("abc")}, "5 of 8 texts of the role text are 'one'"),
        (
            "simcse",
            {"text": ["", " ", "\n", "", "\u3000", *"abc"]},
            "5 of 8 texts of the role text are blank",
        ),
        ("simcse", {"text": ["", " ", "one", "one", *"abcd"]}, None),
        (
            "supervised",
            {"anchor": list("abcdefgh"), "positive": list("abcdeFGH")},
            "5 of 8 rows have the same text as anchor and as positive",
        ),
        (
            "supervised",
            {"anchor": list("abcdefgh"), "positive": list("ijklmnop"), "negative": list("ijklmnop")},
            "8 of 8 rows have the same text as positive and as negative",
        ),
        (
            "classification",
            {"premise": list("abcdefgh"), "hypothesis": list("ijklmnop"), "label": [2] * 8},
            "all of 8 rows have the label 2",
        ),
    ],
)
def test_rows_of_which_most_are_alike_are_reported(
    tmp_path: Path, objective: str, rows: dict[str, list[object]], warning: str | None
):
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    with listening() as heard:
        plan(tmp_path, f"train.data={tmp_path / 'rows.parquet'}", f"train.objective={objective}")
    assert [line.rpartition(".parquet: ")[2] for line in heard] == (
        [] if warning is None else [f"{warning}; little can be learnt from these"]
    )


def test_files_beside_the_training_rows_that_are_not_read_are_reported(tmp_path: Path):
    write_sentences(tmp_path / "data" / "rows.parquet")
    (tmp_path / "data" / "more.jsonl").write_text('{"text": "a"}\n')
    with listening() as heard:
        assert plan(tmp_path, f"train.data={tmp_path / 'data'}").counts[0]["rows"] == 96
    assert heard == [f"1 file below {tmp_path / 'data'} not read, by the names: more.jsonl"]


def test_unsuitable_rows_are_refused(tmp_path: Path):
    supervised = "train.objective=supervised"
    with pytest.raises(DataError, match=r"a column 'anchor' for the role anchor, found the columns text"):
        plan(tmp_path, supervised)
    with pytest.raises(DataError, match=r"at least the 1,000 rows of a batch"):
        plan(tmp_path, "train.order.batch_rows=1000")


def write_pairs(folder: Path, name: str, rows: int, **more: list[str]) -> str:
    """Write pairs whose texts begin with the name, and more columns; return the path."""
    columns = {
        "anchor": [f"{name} a {row}" for row in range(rows)],
        "positive": [f"{name} p {row}" for row in range(rows)],
        **more,
    }
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return str(folder / f"{name}.parquet")


def test_sources_alternate_or_share_a_batch_by_weight(tmp_path: Path):
    one, other = write_pairs(tmp_path, "one", 40), write_pairs(tmp_path, "other", 40, negative=["n"] * 40)
    data = f"train.data=[{{uri: {one}, weight: 1}}, {{uri: {other}, weight: 3}}]"
    supervised, blend = "train.objective=supervised", "train.mixing=blend"
    sources = [rows.source for rows in islice(rank_rows(plan(tmp_path, data, supervised).order, 0), 8)]
    assert (sources.count(one), sources.count(other)) == (2, 6)
    rows = next(rank_rows(plan(tmp_path, data, supervised, blend).order, 0))
    assert sum(text.startswith("one") for text in rows.columns["anchor"]) == 2
    assert "negative" not in rows.columns  # because one of the sources has none
    with pytest.raises(ConfigError, match=r"batches that the weights 1, 3 divide exactly"):
        plan(tmp_path, data, supervised, blend, "train.order.batch_rows=6")


def test_quickthoughts_gets_consecutive_rows_of_documents(tmp_path: Path):
    quickthoughts = "train.objective=quickthoughts"
    columns = {
        "text": [f"sentence {row}" for row in range(60)],
        "document": ["a"] * 30 + ["b"] * 30,
        "position": [*range(30), *range(30)],
    }
    pq.write_table(pa.table(columns), tmp_path / "documents.parquet")
    found = plan(tmp_path, f"train.data={tmp_path / 'documents.parquet'}", quickthoughts)
    assert isinstance(found.order, NeighbourOrder)
    two = f"train.data=[{tmp_path / 'documents.parquet'}, {tmp_path / 'documents.parquet'}]"
    assert plan(tmp_path, two, quickthoughts).steps == 2 * found.steps
    with pytest.raises(
        ConfigError, match=r"train.mixing: expected alternate, because the objective reads neighbouring texts"
    ):
        plan(tmp_path, two, quickthoughts, "train.mixing=blend")
