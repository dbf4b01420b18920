"""The file of gates.queries has texts, or vectors of queries whose texts were not logged."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.text.formats.user_queries import read_user_queries_file


def write(file: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), file)
    return str(file)


def test_lines_are_texts_and_blank_ones_are_left_out(tmp_path: Path):
    (tmp_path / "q.txt").write_text("one\n\n two \nthree\n")
    queries = read_user_queries_file(str(tmp_path / "q.txt"), 3)
    assert (queries.texts, len(queries.vectors), queries.is_cut) == (("one", " two ", "three"), 0, False)
    assert read_user_queries_file(str(tmp_path / "q.txt"), 2).is_cut


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2), pa.list_(pa.float64())])
def test_rows_have_a_text_or_else_a_vector(tmp_path: Path, kind: pa.DataType):
    vectors = pa.array([[0.1, 1.0], [2.0, 3.0], None, [4.0, 5.0]], kind)
    spaces, times = ["s", "s", None, "s"], ["2026-11-02T10", "2026-11-01T09", "2026-12-01T00", None]
    texts = ["a text", None, " ", ""]
    file = write(tmp_path / "q.parquet", text=texts, vector=vectors, space_id=spaces, time=times)
    queries = read_user_queries_file(file, 10)
    assert queries.texts == ("a text", "", "")
    np.testing.assert_array_equal(queries.vectors, np.array([[2, 3], [4, 5]], np.float32))
    assert queries.spaces == {"s"}
    assert queries.times == ("2026-11-01T09", "2026-11-02T10")  # the blank row does not count
    cut = read_user_queries_file(file, 2)
    assert (len(cut), len(cut.vectors), cut.is_cut) == (2, 1, True)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"vector": [[1.0], [1.0, 2.0]], "space_id": ["s", "s"]}, "vectors of one length, found 1 and 2"),
        ({"vector": [[1.0, None]], "space_id": ["s"]}, "found a null among numbers"),
        ({"vector": [[1.0]]}, "strings in the columns space_id and text"),
        ({"vector": [[1]], "space_id": ["s"]}, "lists of floats in the column vector"),
        ({"vector": [1.0], "space_id": ["s"]}, "lists of floats in the column vector"),
        ({"vector": [[1.0]], "space_id": ["s"], "text": [1]}, "strings in the columns space_id and text"),
    ],
)
def test_other_columns_and_vectors_are_refused(tmp_path: Path, columns: dict[str, Any], found: str):
    with pytest.raises(DataError, match=found):
        read_user_queries_file(write(tmp_path / "q.parquet", **columns), 10)
