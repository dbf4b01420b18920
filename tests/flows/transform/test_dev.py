"""Files for `whiten.dev`: their pairs, and the error for each kind of unusable file."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.flows.night.nightly import nightly
from pipeline.flows.transform.decide import dev_pairs
from pipeline.log import Stages
from tests.flows.conftest import write_corpus
from tests.flows.transform.test_decide import make

GIVEN = {"sentence1": ["one", "two", "three"], "sentence2": ["four", "five", None], "score": [1, 2, 3]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"score": [2.5, 2.5, 2.5]}, "at least two pairs with different scores, found 3 pairs, all with 2.5"),
        (
            {"score": pa.array([2, None, None], pa.int64())},
            "at least two pairs with different scores, found 1;",
        ),
        ({"score": [2.5, 1.0, float("inf")]}, "expected finite scores, found 1 infinite ones"),
        ({"score": [2.5, float("nan"), None]}, "at least two pairs with different scores, found 1;"),
        (
            {"score": ["3.5", "high", "1"]},
            "two columns of strings and scores as numbers, found string, string, string",
        ),
        ({"score": [{"a": 1}] * 3}, "scores as numbers"),
        (
            {"sentence1": [1, 2, 3]},
            "two columns of strings and scores as numbers, found int64, string, int64",
        ),
        ({"sentence2": ["", " ", None]}, "sentences in the column sentence2, found 3 blank or missing ones"),
        ({}, "expected columns sentence1, sentence2, score, found sentence1, sentence2; add score"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "on"])
def test_an_invalid_dev_file_is_refused_before_the_corpus_is_read(
    tmp_path: Path, encoder: Path, columns: dict[str, object], message: str, mode: str
):
    given = {**GIVEN, **columns} if columns else {name: GIVEN[name] for name in ("sentence1", "sentence2")}
    write_corpus(tmp_path / "corpus")
    pq.write_table(pa.table(given), tmp_path / "dev.parquet")
    job = make(
        tmp_path, encoder, "whiten.k=dev", f"whiten.mode={mode}", f"whiten.dev={tmp_path / 'dev.parquet'}"
    )
    with pytest.raises(DataError, match=message) as caught:
        nightly(job, Stages())
    assert caught.value.exit_code == 3
    assert not (tmp_path / "releases" / "units").exists()


def test_a_folder_is_refused_as_dev_file(tmp_path: Path):
    with pytest.raises(
        DataError, match=r"whiten\.dev: .*: expected a Parquet file, found .*; check the path"
    ):
        dev_pairs(str(tmp_path))


def test_dev_pairs_are_the_pairs_with_a_score(tmp_path: Path):
    for score in (pa.array([1, None, 3], pa.int32()), pa.array([1.0, float("nan"), 3.0])):
        columns = {**GIVEN, "score": score, "sentence1": pa.array(["one", "two", "one"]).dictionary_encode()}
        pq.write_table(pa.table(columns), tmp_path / "dev.parquet")
        left, right, gold = dev_pairs(str(tmp_path / "dev.parquet"))
        assert (left, gold.tolist()) == (("one", "one"), [1.0, 3.0])
        assert right == ("four", " "), "a missing sentence becomes a space"
