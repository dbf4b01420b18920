"""Rows of Parquet files arrive complete and in order, in bounded batches, whatever the footer says."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.settings import CorpusSettings
from pipeline.text.formats.reader import read_batches, survey_files
from pipeline.text.sources.sources import list_files

MIB = 1 << 20


def character_counts(path: Path) -> list[int]:
    """Number of characters of each batch; checks that the ids are 0, 1, 2 ..."""
    corpus = CorpusSettings(uri=str(path))
    rows_read, sizes = 0, []
    for batch in read_batches(list_files(corpus)[0], corpus):
        assert batch.good["id"].to_pylist() == list(range(rows_read, rows_read + batch.rows))
        rows_read += batch.rows
        sizes.append(sum(map(len, batch.good["text"].to_pylist())))
    return sizes


def dictionary_array(values: list[str], indices: np.ndarray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int32)), pa.array(values))


@pytest.mark.parametrize("keeps_type", [True, False], ids=["dictionary column", "dictionary pages"])
def test_one_long_value_for_every_row_is_read_in_bounded_batches(keeps_type: bool, tmp_path: Path):
    table = pa.table({"id": range(150), "text": dictionary_array(["x" * MIB], np.zeros(150))})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=keeps_type)
    assert (tmp_path / "a.parquet").stat().st_size < MIB  # 150 MiB of text
    sizes = character_counts(tmp_path)
    assert sum(sizes) == 150 * MIB
    assert max(sizes) <= 32 * MIB


@pytest.mark.parametrize("keeps_type", [True, False], ids=["dictionary column", "dictionary pages"])
def test_rows_that_become_large_after_small_ones_are_all_read(keeps_type: bool, tmp_path: Path):
    indices = np.repeat([0, 1, 0], [3_000, 100, 500])
    table = pa.table({"id": range(3_600), "text": dictionary_array(["light", "y" * MIB], indices)})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=keeps_type, row_group_size=3_050)
    assert sum(character_counts(tmp_path)) == 3_500 * 5 + 100 * MIB


@pytest.mark.parametrize("group", [1_000_000, 9_990])
def test_large_dictionary_is_copied_into_few_batches(
    group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each batch that Arrow reads of such a column has the whole dictionary, 20 MB here."""
    rows, values = 40_000, [f"{number:0100d}" for number in range(200_000)]
    indices = np.random.default_rng(0).integers(0, len(values), rows)
    kept = dictionary_array(values, indices)
    table = pa.table({"id": range(rows), "text": [f"row {row}" for row in range(rows)], "kept": kept})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=group)
    copies, iter_batches = [], pq.ParquetFile.iter_batches

    def counting_iter_batches(
        file: pq.ParquetFile, *args: object, **options: object
    ) -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(file, *args, **options):
            copies.append("kept" in batch.schema.names)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting_iter_batches)
    corpus = CorpusSettings(uri=str(tmp_path), keep=("kept",))
    batches = list(read_batches(list_files(corpus)[0], corpus))
    assert [row for batch in batches for row in batch.good["kept"].to_pylist()] == kept.to_pylist()
    assert [row for batch in batches for row in batch.good["id"].to_pylist()] == list(range(rows))
    assert sum(copies) <= 5
    assert len(batches) <= 6


def test_steps_grow_again_after_a_row_group_of_large_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    indices = np.repeat([1, 0], [200, 20_000])
    table = pa.table({"id": range(20_200), "text": dictionary_array(["light", "y" * MIB], indices)})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False, row_group_size=1_000)
    sizes, iter_batches = [], pq.ParquetFile.iter_batches

    def counting_iter_batches(
        file: pq.ParquetFile, *args: object, **options: object
    ) -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(file, *args, **options):
            sizes.append(len(batch))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting_iter_batches)
    assert sum(character_counts(tmp_path)) == 20_000 * 5 + 200 * MIB
    assert sizes[-15:] == [1_000] * 14 + [200]


@pytest.mark.parametrize("large", [True, False])
def test_dictionaries_with_nulls_are_read(large: bool, tmp_path: Path):
    rows = 3_000
    kind = pa.large_string() if large else pa.string()
    indices = pa.array([None if row % 7 == 0 else row % 3 for row in range(rows)], pa.int8())
    kept = pa.DictionaryArray.from_arrays(indices, pa.array(["x", "longer", ""], kind))
    empty = pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()), pa.array([], kind))
    texts = dictionary_array([f"text {number}" for number in range(rows)], np.arange(rows))
    ids = dictionary_array([f"id {number}" for number in range(rows)], np.arange(rows))
    table = pa.table({"id": ids, "text": texts, "kept": kept, "empty": empty})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1_300)
    corpus = CorpusSettings(uri=str(tmp_path), keep=("kept", "empty"))
    batches = list(read_batches(list_files(corpus)[0], corpus))
    for name in table.column_names:
        expected = table[name].to_pylist()
        assert [row for batch in batches for row in batch.good[name].to_pylist()] == expected


@pytest.mark.parametrize("group", [7, 100, 5_000, 40_000])
def test_short_rows_come_in_large_batches_across_row_groups(group: int, tmp_path: Path):
    rows = 20_000
    pq.write_table(
        pa.table({"id": range(rows), "text": [f"row {row}" for row in range(rows)]}),
        tmp_path / "a.parquet",
        row_group_size=group,
    )
    assert len(character_counts(tmp_path)) <= 3


def test_file_with_very_many_columns_is_read(tmp_path: Path):
    """Takes a second; more than a minute if each column is searched for among all the others."""
    columns = {f"c{number}": [number] for number in range(20_000)}
    pq.write_table(pa.table({"id": [1], "text": ["x"], **columns}), tmp_path / "a.parquet")
    corpus = CorpusSettings(uri=str(tmp_path), keep=("c19999",))
    files = list_files(corpus)
    assert survey_files(files, corpus).rows == {"a.parquet": 1}
    assert [row for batch in read_batches(files[0], corpus) for row in batch.good["c19999"].to_pylist()] == [
        19_999
    ]
