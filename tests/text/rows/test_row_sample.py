"""A sample of training rows is seeded, without repetition, close to uniform, and bounded in what it reads."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.settings.training import SourceSettings
from pipeline.text.rows import row_sample
from pipeline.text.rows.row_sample import sample_rows
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows


def rows_of(folder: Path, *lengths: int, group: int = 1_000) -> TrainingRows:
    """Write one file of texts for each length, and open all of them; row r has the text "r"."""
    first = 0
    for number, length in enumerate(lengths):
        texts = [str(row) for row in range(first, first + length)]
        pq.write_table(pa.table({"text": texts}), folder / f"{number:03d}.parquet", row_group_size=group)
        first += length
    return open_training_rows(SourceSettings(uri=str(folder)), ["text"])


def sampled(rows: TrainingRows, size: int, seed: int = 0) -> list[int]:
    tables = list(sample_rows(rows, ["text"], size, seed))
    numbers = [row for table in tables for row in table["row"].to_pylist()]
    assert [text for table in tables for text in table["text"].to_pylist()] == [str(row) for row in numbers]
    return numbers


def test_a_sample_has_distinct_rows_that_depend_on_the_seed(tmp_path: Path):
    rows = rows_of(tmp_path, 2_500, 10, 12_000, group=9_000)
    found = sampled(rows, 400)
    assert len(found) == 400
    assert found == sorted(set(found)) == sampled(rows, 400)
    assert found != sampled(rows, 400, seed=1)


@pytest.mark.parametrize("size", [96, 1_000])
def test_all_rows_are_sampled_if_there_are_no_more(tmp_path: Path, size: int):
    assert sampled(rows_of(tmp_path, 40, 0, 56, group=25), size) == list(range(96))


def test_every_row_is_sampled_with_the_same_probability(tmp_path: Path):
    rows = rows_of(tmp_path, 50, 10, 40, group=20)
    counts = np.bincount(np.concatenate([sampled(rows, 20, seed) for seed in range(500)]), minlength=100)
    # Binomial(500, 0.2): mean 100, standard deviation 9.
    assert (np.abs(counts - 100) < 45).all()


def test_many_row_groups_give_a_sample_of_some_of_them(tmp_path: Path):
    rows = rows_of(tmp_path, *[100] * 60, group=50)
    groups = [{row // 50 for row in sampled(rows, 800, seed)} for seed in range(3)]
    assert [len(each) for each in groups] == [32] * 3
    assert groups[0] != groups[1]


def test_only_the_first_rows_of_large_row_groups_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_sample, "_MAX_READ", 2_000)
    found = sampled(rows_of(tmp_path, 10_000, 10_000, group=10_000), 300)
    assert len(found) == 300
    assert max(row % 10_000 for row in found) < 1_000
