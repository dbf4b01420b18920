"""Times that Parquet files store as INT96, as Spark did for long: some have no nanoseconds since 1970."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.text.corpus.sources import SourceFile

_FIRST, _LAST = -(2**63) // 1000 + 1, 2**63 // 1000 - 1  # microseconds from 1677 to 2262


def int96_columns(metadata: pq.FileMetaData, names: Sequence[str]) -> list[str]:
    """Return the paths of the columns that store INT96, of these columns and inside of them."""
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    return [
        column.path
        for column in columns
        if column.physical_type == "INT96" and {column.path, column.path.split(".")[0]} & set(names)
    ]


def check_int96(
    file: SourceFile,
    stream: pa.NativeFile,
    metadata: pq.FileMetaData,
    names: Sequence[str],
    groups: Iterable[int],
) -> None:
    """Check that the times of INT96 columns have nanoseconds since 1970; Arrow would return other times.

    Args:
        file: the file.
        stream: its content.
        metadata: its footer.
        names: the columns to check.
        groups: the row groups to check.

    Raises:
        DataError: a time is before 1677 or after 2262.
    """
    if not (paths := int96_columns(metadata, names)):
        return
    reader = pq.ParquetFile(stream, metadata=metadata, coerce_int96_timestamp_unit="us")
    for group in groups:
        table = reader.read_row_group(group, columns=paths)
        for name, column in zip(table.column_names, table.columns, strict=True):
            for times in _times(column.combine_chunks()):
                if (year := _odd_year(times)) is not None:
                    raise file.error(
                        f"corpus.keep: times of column {name} from 1677 to 2262, since INT96 has nanoseconds",
                        f"one of the year {year}",
                        "write the file with times in microseconds (in Spark, "
                        "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS), or do not keep the column",
                    )


def _odd_year(times: pa.Array) -> int | None:
    """Return the year of a time that has no nanoseconds since 1970; None without one."""
    bounds = pc.min_max(times.cast(pa.int64())).as_py()
    odd = [value for value in bounds.values() if value is not None and not _FIRST <= value <= _LAST]
    return int(pc.year(pa.scalar(odd[0], pa.timestamp("us"))).as_py()) if odd else None


def _times(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the times of an array, or inside of lists and structs."""
    if pa.types.is_timestamp(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _times(child)
    elif pa.types.is_map(array.type):
        yield from _times(array.keys)
        yield from _times(array.items)
    elif pa.types.is_nested(array.type):
        yield from _times(array.flatten())
