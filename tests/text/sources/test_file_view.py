"""Types of columns of tables: those in the table, whatever a data file has."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.store.records.units import Changes
from pipeline.text.sources.sources import list_files
from tests.text.ingest.lake_tables import added, change_type, commit, rows
from tests.text.ingest.table_nights import DeltaNights


def kept_values(nights, ingested, name):
    """Values of a column in all units, with their type."""
    tables = [pq.read_table(nights.store.open(unit.path), columns=[name]) for unit in ingested.units]
    column = pa.concat_tables(tables)[name]
    return column.type, sorted(column.to_pylist(), key=str)


def test_times_that_are_stored_as_int96_are_those_of_the_table(tmp_path):
    """Spark writes them so. Years after 2262 do not fit in nanoseconds."""
    nights = DeltaNights(tmp_path)
    last = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
    kind = pa.timestamp("us", "UTC")
    times = [last, datetime(1816, 3, 29, tzinfo=UTC), None]
    first = rows(range(3), at=pa.array(times, kind))
    nights.write(first)
    (file,) = list_files(nights.corpus)
    pq.write_table(first, file.uri, use_deprecated_int96_timestamps=True)
    add = added(nights.root)[file.table.location]
    commit(nights.root, {"add": {**add, "size": (nights.root / file.name).stat().st_size}})
    nights.set(keep=("lang", "at"))
    assert kept_values(nights, nights.night(), "at") == (kind, sorted(times, key=str))
    nights.write(rows([3], at=pa.array([last], kind)))
    ingested = nights.night()
    assert ingested.changes == Changes(new=1, unchanged=3)
    assert kept_values(nights, ingested, "at") == (kind, sorted([*times, last], key=str))


@pytest.mark.parametrize(
    ("values", "kind", "name", "wider", "widened", "read_again"),
    [
        ([1, 2], pa.int32(), "long", pa.int64(), [1, 2], 0),
        ([1, 2], pa.int32(), "double", pa.float64(), [1.0, 2.0], 0),
        (
            [date(2020, 1, 1), date(9999, 12, 31)],
            pa.date32(),
            "timestamp_ntz",
            pa.timestamp("us"),
            [datetime(2020, 1, 1), datetime(9999, 12, 31)],
            1,
        ),
    ],
)
def test_types_that_were_widened_are_those_of_the_table(
    tmp_path, values, kind, name, wider, widened, read_again
):
    nights = DeltaNights(tmp_path)
    nights.set(keep=("lang", "value"))
    nights.write(rows([0, 1], value=pa.array(values, kind)))
    assert kept_values(nights, nights.night(), "value") == (kind, values)
    change_type(nights.root, "value", name)
    assert nights.night().read_files == read_again
    nights.write(rows([2], value=pa.array(widened[1:], wider)))
    ingested = nights.night()
    assert ingested.changes.new == 1
    assert kept_values(nights, ingested, "value") == (wider, [*widened, widened[1]])
    other = DeltaNights(tmp_path / "again")
    other.set(uri=str(nights.root), keep=("lang", "value"), snapshot=1)
    assert kept_values(other, other.night(), "value") == (wider, widened)


def test_a_data_file_without_any_column_of_the_table_is_named(tmp_path):
    """Names of columns are compared with their case, as in any Parquet file."""
    nights = DeltaNights(tmp_path)
    first = rows(range(3))
    nights.write(first)
    (file,) = list_files(nights.corpus)
    pq.write_table(first.rename_columns([name.upper() for name in first.column_names]), file.uri)
    add = added(nights.root)[file.table.location]
    commit(nights.root, {"add": {**add, "size": (nights.root / file.name).stat().st_size}})
    with pytest.raises(DataError, match=r"expected one of the columns id, .*, found ID, "):
        nights.night()
