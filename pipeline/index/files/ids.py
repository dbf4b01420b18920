"""Look up the user's ids of rows by address, in memory-mapped Arrow IPC files that are sorted by address."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.store.rows.address import describe, ordinal_of
from pipeline.store.rows.arrays import arrow_of, numpy_of
from pipeline.where.evaluate import Condition

# Rows are evaluated in slices that take about this time, whatever the condition and the texts' length.
_EVALUATED_S = 0.02
_MAX_EVALUATED = 1 << 18  # rows
_RESTORE = "restore it, or build the index again"


def write_ids(file: Path, tables: Iterable[pa.Table]) -> None:
    """Write tables as one uncompressed Arrow IPC file, with a record batch for each table.

    Args:
        tables: columns address (int64), id, and those that corpus.keep names. Addresses must ascend across
            all tables.

    Raises:
        DataError: there are no tables, addresses do not ascend, or columns differ.
    """
    tables, last = iter(tables), -1
    if (first := next(tables, None)) is None:
        raise DataError(
            str(file), "ids of at least one unit", "none", "build the index from at least one unit"
        )
    with pa.ipc.new_file(str(file), first.schema.remove_metadata()) as writer:
        for table in chain([first], tables):
            if not table.schema.equals(first.schema):
                raise DataError(
                    str(file),
                    f"in every unit the columns {_describe_columns(first.schema)}",
                    _describe_columns(table.schema),
                    "write units of one corpus together",
                )
            addresses = np.concatenate([[last], table["address"].to_numpy()])
            if len(wrong := np.flatnonzero(np.diff(addresses) <= 0)):
                raise DataError(
                    str(file),
                    "addresses that ascend",
                    f"{addresses[wrong[0] + 1]} after {addresses[wrong[0]]}",
                    "write units in the order of their ordinals",
                )
            for batch in table.replace_schema_metadata(None).combine_chunks().to_batches():
                writer.write_batch(batch)
            last = int(addresses[-1])


def _describe_columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def iter_live_ids(files: Sequence[Path], dead: np.ndarray) -> Iterator[pa.Table]:
    """Yield the rows of ids files without the dead ones, in address order, a batch at a time.

    Args:
        dead: (n,) int64, addresses of the dead rows, ascending.
    """
    for _, batch in _open_batches(files):
        addresses = batch["address"].to_numpy()
        low, high = np.searchsorted(dead, [addresses[0], addresses[-1] + 1])
        table = pa.Table.from_batches([batch])
        yield table.filter(pa.array(~np.isin(addresses, dead[low:high]))) if high > low else table


def ids_schema(file: Path) -> pa.Schema:
    """Return the columns of an ids file: address, id, and those that corpus.keep named."""
    with _as_data_error(str(file)):
        return pa.ipc.open_file(pa.memory_map(str(file))).schema


class Ids:
    """A table from addresses to ids and the columns that corpus.keep named.

    Opening reads only the files' footers. Threads may share an object.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        """Map the files.

        Raises:
            DataError: a file is not an Arrow IPC file of ids, or there are no rows.
        """
        batches = _open_batches(files)
        if not batches:
            raise DataError("ids", "at least one row", "none", "restore them, or build the index again")
        self._files = [file for file, _ in batches]
        self._batches = [batch.drop_columns(["address"]) for _, batch in batches]
        self._addresses = [numpy_of(batch["address"]) for _, batch in batches]
        self._firsts = np.array([addresses[0] for addresses in self._addresses], dtype=np.int64)

    def __len__(self) -> int:
        return sum(map(len, self._addresses))

    def validate(self) -> None:
        """Read every row.

        Raises:
            DataError: offsets are outside the file, values are invalid, or two rows have one address.
        """
        last = -1
        for file, batch, addresses in zip(self._files, self._batches, self._addresses, strict=True):
            with _as_data_error(str(file)):
                batch.validate(full=True)
            if addresses[0] <= last or np.any(np.diff(addresses) <= 0):
                found = "an address of two rows, or addresses that do not ascend"
                raise DataError(str(file), "each address once, ascending", found, _RESTORE)
            last = addresses[-1]

    @property
    def schema(self) -> pa.Schema:
        """The id and the columns that corpus.keep named."""
        return self._batches[0].schema

    @property
    def next_ordinal(self) -> int:
        """The ordinal after the highest one of all rows."""
        return 1 + max(int(ordinal_of(addresses[-1])) for addresses in self._addresses)

    def matching(
        self, condition: Condition, proceed: Callable[[], None] = lambda: None
    ) -> Iterator[np.ndarray]:
        """Yield the addresses (n,) int64 of the rows for which a condition is true, ascending, in batches.

        The files may hold rows that are no longer in the index.

        Args:
            proceed: called often while rows are evaluated; may raise an error to stop the evaluation.
        """
        rows, shortest_s = 1, math.inf
        for addresses, batch in zip(self._addresses, self._batches, strict=True):
            start = 0
            while start < len(addresses):
                proceed()
                began = time.perf_counter()
                is_true = pc.fill_null(condition.evaluate(batch.slice(start, rows)), False)
                duration_s, stop = time.perf_counter() - began, start + len(is_true)
                yield addresses[start:stop][numpy_of(is_true.cast(pa.uint8())).astype(bool)]
                start = stop
                shortest_s = min(shortest_s, duration_s)  # about the time that a condition takes without rows
                wanted_s = _EVALUATED_S + 2 * shortest_s
                if duration_s < wanted_s:
                    rows = min(4 * rows, _MAX_EVALUATED)
                elif duration_s > 4 * wanted_s:
                    rows = max(1, rows // 4)

    def take(self, addresses: np.ndarray) -> pa.Table:
        """Return the rows of `addresses` (n,) in their order. Raises DataError for an unknown address."""
        batch_numbers = np.searchsorted(self._firsts, addresses, side="right") - 1
        batches = [self._batches[0].slice(0, 0)]  # the columns, if `addresses` is empty
        # index into `addresses` of each taken row, because rows are taken batch by batch
        positions = [np.zeros(0, dtype=np.int64)]
        for number in np.unique(batch_numbers).tolist():
            in_batch = np.flatnonzero(batch_numbers == number)
            positions.append(in_batch)
            batches.append(self._take_from_batch(number, addresses[in_batch]))
        tables = [pa.Table.from_batches([batch]) for batch in batches]
        order = np.argsort(np.concatenate(positions), kind="stable")
        return pa.concat_tables(tables, promote_options="default").combine_chunks().take(arrow_of(order))

    def _take_from_batch(self, number: int, wanted: np.ndarray) -> pa.RecordBatch:
        stored_addresses = self._addresses[number]
        rows = np.minimum(np.searchsorted(stored_addresses, wanted), len(stored_addresses) - 1)
        if len(missing := wanted[stored_addresses[rows] != wanted]):
            raise DataError(
                "ids",
                f"the id of {describe(int(missing[0]))}",
                "none",
                "the files of the index and the ids are of different releases: restore them, or roll back",
            )
        return self._batches[number].take(arrow_of(rows))


def _open_batches(files: Sequence[Path]) -> list[tuple[Path, pa.RecordBatch]]:
    """Map the files and return their nonempty record batches in address order, each with its file."""
    batches: list[tuple[Path, pa.RecordBatch]] = []
    for file in files:
        with _as_data_error(str(file)):
            reader = pa.ipc.open_file(pa.memory_map(str(file)))
            names = reader.schema.names
            if names[:2] != ["address", "id"] or reader.schema.field("address").type != pa.int64():
                raise DataError(
                    str(file),
                    "columns address (int64) and id first",
                    ", ".join(names),
                    "build the index again",
                )
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                batch.validate()
                if batch["address"].null_count:
                    raise pa.ArrowInvalid("a row without an address")
                if batch.num_rows:
                    batches.append((file, batch))
    return sorted(batches, key=lambda each: each[1]["address"][0].as_py())


@contextlib.contextmanager
def _as_data_error(where: str) -> Iterator[None]:
    """Turn the errors that Arrow raises within the block for an unreadable file into DataError."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(where, "an Arrow IPC file", " ".join(str(error).split()), _RESTORE) from None
