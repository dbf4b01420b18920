"""Columns of every Arrow type, and columns that are unsuitable for a role."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.source import TaskRoles, open_file
from pipeline.settings import TaskSettings
from pipeline.store.files.open_store import open_store
from tests.evaluate.files import save


def rows(folder: Path, **columns: object):
    file = save(folder / "f.parquet", columns)
    return open_file(
        TaskSettings(kind="pairs", uri=str(file)), open_store(folder), "f.parquet", TaskRoles(tuple(columns))
    ).rows()


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_strings_of_every_type_are_texts_and_classes(tmp_path: Path, kind: pa.DataType):
    found = rows(tmp_path, text=pa.array(["b", None, "a", "b", "\t\u00a0\n", ""]).cast(kind))
    assert found.texts("text") == ["b", " ", "a", "b", " ", " "]
    assert found.missing("text") == 3, "blank texts are missing, as in a corpus"
    codes, values = found.codes("text")
    assert (codes.tolist()[:4], values[:2]) == ([0, -1, 1, 0], ["b", "a"])


NUMBERS = (pa.int8(), pa.int64(), pa.uint32(), pa.float16(), pa.float32(), pa.float64())


@pytest.mark.parametrize("kind", [*NUMBERS, pa.decimal128(21, 2), pa.bool_()])
def test_numbers_of_every_type_are_numbers(tmp_path: Path, kind: pa.DataType):
    values = pa.array([True, None, False] if kind == pa.bool_() else [1, None, 0]).cast(kind)
    for number, column in enumerate((values, values.dictionary_encode())):
        found = rows(tmp_path / str(number), label=column)
        np.testing.assert_array_equal(found.labels("label"), [1, np.nan, 0])


def test_integers_that_floats_do_not_have_are_rounded(tmp_path: Path):
    found = rows(tmp_path, score=pa.array([2**53 + 1, 2**64 - 1, 3], pa.uint64()))
    np.testing.assert_array_equal(found.numbers("score"), [2.0**53, 2.0**64, 3])


def test_a_column_without_values_has_blank_texts_and_no_numbers(tmp_path: Path):
    found = rows(tmp_path, text=pa.nulls(2), score=pa.nulls(2))
    assert found.texts("text") == [" ", " "]
    assert np.isnan(found.numbers("score")).all()


def test_nan_is_not_a_class(tmp_path: Path):
    codes, values = rows(tmp_path, label=pa.array([1.0, float("nan"), None, 0.0])).codes("label")
    assert (codes.tolist(), values) == ([0, -1, -1, 1], [1.0, 0.0])


def test_a_column_can_have_one_role_only(tmp_path: Path):
    save(tmp_path / "f.parquet", {"a": ["x"], "label": [1]})
    source = TaskSettings(kind="pairs", uri="f.parquet", columns={"sentence1": "a", "sentence2": "a"})
    with pytest.raises(
        ConfigError,
        match="columns: expected a different column for each role, found 'a' for sentence1 and for sentence2",
    ):
        open_file(source, open_store(tmp_path), "f.parquet", TaskRoles(("sentence1", "sentence2", "label")))


def test_folders_and_repeated_column_names_are_refused(tmp_path: Path):
    pq.write_table(
        pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"]),
        tmp_path / "f.parquet",
    )
    for path, message in (
        ("f.parquet", "found 'text' more than once; rename"),
        ("", "a folder; use the path of a file in it"),
    ):
        with pytest.raises(DataError, match=message):
            open_file(
                TaskSettings(kind="duplicates", uri=path),
                open_store(tmp_path if path else tmp_path.parent),
                path or tmp_path.name,
                TaskRoles(("text",)),
            )


def test_columns_of_other_types_are_refused(tmp_path: Path):
    found = rows(
        tmp_path, nested=pa.array([[1], [2]]), binary=pa.array([b"a", b"b"]), text=pa.array(["a", "b"])
    )
    for read, column in (
        (found.texts, "nested"),
        (found.texts, "binary"),
        (found.numbers, "text"),
        (found.numbers, "nested"),
        (found.codes, "nested"),
    ):
        with pytest.raises(DataError, match="set another column"):
            read(column)


def test_row_order_is_that_of_the_file(tmp_path: Path):
    order = np.random.default_rng(0).permutation(5_000)
    assert rows(tmp_path, text=[str(each) for each in order]).texts("text") == [str(each) for each in order]
