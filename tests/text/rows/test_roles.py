"""Values of roles in any encoding of Parquet, and errors for values that cannot be converted."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.settings.training import SourceSettings
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows

NOT_UTF8 = pa.Array.from_buffers(pa.string(), 3, pa.array([b"\xff", b"b", b"c"], pa.binary()).buffers())


def opened(folder: Path, column: pa.Array, role: str, **settings: str) -> TrainingRows:
    pq.write_table(pa.table({role: column}), folder / "rows.parquet")
    return open_training_rows(SourceSettings(uri=str(folder / "rows.parquet"), **settings), [role])


def values(rows: TrainingRows, role: str) -> list[object]:
    return pa.concat_tables(rows.read(rows.spans()))[role].to_pylist()


@pytest.mark.parametrize("encoded", [pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.string()])
def test_rows_are_left_out_in_every_encoding_of_strings(tmp_path: Path, encoded: pa.DataType):
    labels = opened(tmp_path, pa.array(["neutral", "-", "entailment"]).cast(encoded), "label")
    assert values(labels, "label") == [1, 0]
    texts = opened(tmp_path, pa.array(["a", None, "c"]).cast(encoded), "text", missing="drop")
    assert values(texts, "text") == ["a", "c"]


@pytest.mark.parametrize("role", ["label", "document", "group", "section", "text"])
def test_a_value_that_is_not_utf8_is_refused_by_row(tmp_path: Path, role: str):
    with pytest.raises(DataError, match=rf"row 0 .*, {role}: .* found bytes that are not valid UTF-8"):
        values(opened(tmp_path, NOT_UTF8, role), role)


@pytest.mark.parametrize("column", [pa.array([2**53 + 1]), pa.array([2**64 - 1], pa.uint64())])
def test_a_score_that_no_float_can_hold_is_refused_by_row(tmp_path: Path, column: pa.Array):
    with pytest.raises(DataError, match=f"row 0 .*, score: .* found {column[0].as_py()}"):
        opened(tmp_path, column, "score")
