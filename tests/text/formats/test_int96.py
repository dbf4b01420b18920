"""Times that files store as INT96 are read as they were written, or refused."""

from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.text.formats.reader import read_batches
from pipeline.text.sources.sources import list_files

GOOD = [datetime(1678, 1, 1), None, datetime(2261, 12, 31, 1, 2, 3, 456_789)]
SHAPES = {
    "plain": (lambda times: times, pa.timestamp("us")),
    "list": (
        lambda times: [None if time is None else [time] for time in times],
        pa.list_(pa.timestamp("us")),
    ),
    "struct": (lambda times: [{"at": time} for time in times], pa.struct([("at", pa.timestamp("us"))])),
}


def read(
    folder: Path, times: list, shape: str, keep: tuple[str, ...] = ("seen",), name: str = "seen"
) -> list:
    """Write a column of times as INT96, in two row groups, and return its values as they are read."""
    nested, kind = SHAPES[shape]
    count = len(times)
    table = pa.table({"id": range(count), "text": ["words"] * count, name: pa.array(nested(times), kind)})
    pq.write_table(table, folder / "rows.parquet", use_deprecated_int96_timestamps=True, row_group_size=2)
    corpus = CorpusSettings(uri=str(folder), keep=keep)
    (file,) = list_files(corpus)
    batches = [batch.good for batch in read_batches(file, corpus)]
    return pa.concat_tables(batches).column(2).to_pylist()


@pytest.mark.parametrize("shape", SHAPES)
def test_times_of_these_centuries_are_read(tmp_path: Path, shape: str):
    nested, kind = SHAPES[shape]
    assert pa.array(read(tmp_path, GOOD, shape)).cast(kind).to_pylist() == nested(GOOD)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("year", [1600, 2263, 9999])
def test_other_times_are_refused(tmp_path: Path, shape: str, year: int):
    with pytest.raises(DataError, match=f"from 1677 to 2262.*one of the year {year}.*TIMESTAMP_MICROS"):
        read(tmp_path, [*GOOD, datetime(year, 6, 1)], shape)


def test_a_dot_in_a_name_hides_no_time(tmp_path: Path):
    with pytest.raises(DataError, match="one of the year 9999"):
        read(tmp_path, [*GOOD, datetime(9999, 6, 1)], "plain", keep=("seen.at",), name="seen.at")


def test_a_column_that_is_not_kept_may_have_any_times(tmp_path: Path):
    assert len(read(tmp_path, [*GOOD, datetime(9999, 1, 1)], "plain", keep=())) == 4
