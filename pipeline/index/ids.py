"""From addresses back to the user's ids: Arrow IPC files sorted by address, mapped into memory, searched by
bisection.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.errors import DataError
from pipeline.store.arrays import arrow_of, numpy_of


def write_ids(file: Path, tables: Iterable[pa.Table]) -> int:
    """Tables of (address int64, id, kept columns), addresses ascending across all of them, as one
    uncompressed Arrow IPC file; rows written.

    Each table becomes one record batch, so a unit each is right. DataError where addresses do not ascend or
    columns differ.
    """
    rows, last = 0, -1
    tables = iter(tables)
    first = next(tables, None)
    if first is None:
        raise DataError(
            str(file), "ids of at least one unit", "none", "build the index from at least one unit"
        )
    with pa.ipc.new_file(str(file), first.schema.remove_metadata()) as writer:
        for table in _with_first(first, tables):
            addresses = table["address"].to_numpy()
            _check_table(file, table, first, np.concatenate([[last], addresses]))
            for batch in table.replace_schema_metadata(None).combine_chunks().to_batches():
                writer.write_batch(batch)
            rows, last = rows + len(addresses), int(addresses[-1]) if len(addresses) else last
    return rows


def _with_first(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest


def _check_table(file: Path, table: pa.Table, first: pa.Table, addresses: np.ndarray) -> None:
    if not table.schema.equals(first.schema):
        found, expected = (
            ", ".join(f"{field.name} {field.type}" for field in each.schema) for each in (table, first)
        )
        raise DataError(
            str(file), f"in every unit the columns {expected}", found, "write units of one corpus together"
        )
    if len(wrong := np.flatnonzero(np.diff(addresses) <= 0)):
        before, after = addresses[wrong[0]], addresses[wrong[0] + 1]
        raise DataError(
            str(file),
            "addresses that ascend",
            f"{after} after {before}",
            "write units in the order of their ordinals",
        )


def surviving(files: Sequence[Path], gone: np.ndarray) -> Iterator[pa.Table]:
    """The rows of those ids files, in address order and a batch at a time, without the addresses `gone` (n,)
    int64, ascending.
    """
    filled = (batch for batch in _batches(files) if batch.num_rows)
    for batch in sorted(filled, key=lambda batch: batch["address"][0].as_py()):
        addresses = batch["address"].to_numpy()
        low, high = np.searchsorted(gone, [addresses[0], addresses[-1] + 1])
        table = pa.Table.from_batches([batch])
        yield table.filter(pa.array(~np.isin(addresses, gone[low:high]))) if high > low else table


def ids_schema(file: Path) -> pa.Schema:
    """Columns of an ids file: address, id, and the kept ones."""
    with _readable(file):
        return pa.ipc.open_file(pa.memory_map(str(file))).schema


class Ids:
    """The rows behind addresses: a column id, then the kept ones.

    Opens in the time it takes to read the files' footers; safe to share between threads.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        filled = sorted(
            (batch for batch in batches if batch.num_rows), key=lambda batch: batch["address"][0].as_py()
        )
        self._schema = (
            batches[0].schema if batches else pa.schema([("address", pa.int64()), ("id", pa.string())])
        )
        self._batches = [batch.drop_columns(["address"]) for batch in filled]
        self._addresses = [numpy_of(batch["address"]) for batch in filled]
        self._firsts = np.array([addresses[0] for addresses in self._addresses], dtype=np.int64)

    def __len__(self) -> int:
        return sum(len(addresses) for addresses in self._addresses)

    def validate(self) -> None:
        """Read every row. DataError for offsets that leave the file, or text that is not valid UTF-8."""
        try:
            for batch in self._batches:
                batch.validate(full=True)
        except pa.ArrowInvalid as error:
            found, remedy = " ".join(str(error).split()), "restore it, or build the index again"
            raise DataError("ids", "an Arrow IPC file", found, remedy) from None

    def take(self, addresses: np.ndarray) -> pa.Table:
        """The rows of `addresses` (n,) in their order; DataError for an address that no file holds."""
        places = np.searchsorted(self._firsts, addresses, side="right") - 1
        taken, wanted = [], []
        for place in np.unique(places):
            asked = np.flatnonzero(places == place)
            taken.append(self._rows(int(place), addresses[asked]))
            wanted.append(asked)
        if not taken:
            return pa.Table.from_batches([], schema=self._schema).drop_columns(["address"])
        order = np.argsort(np.concatenate(wanted), kind="stable")
        tables = [pa.Table.from_batches([batch]) for batch in taken]
        return pa.concat_tables(tables, promote_options="default").combine_chunks().take(arrow_of(order))

    def _rows(self, place: int, wanted: np.ndarray) -> pa.RecordBatch:
        known = self._addresses[place] if place >= 0 else np.zeros(0, dtype=np.int64)
        rows = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
        if not len(known) or (known[rows] != wanted).any():
            missing = int(wanted[0] if not len(known) else wanted[known[rows] != wanted][0])
            unit, row = divmod(missing, 1 << 32)
            raise DataError(
                "ids",
                f"the id of unit {unit}, row {row}",
                "none",
                "index and ids are not of one release: restore them, or roll back",
            )
        return self._batches[place].take(arrow_of(rows))


def open_ids(files: Sequence[Path]) -> Ids:
    """The ids in those files, mapped, not read.

    DataError for a file that is no Arrow IPC file with a column address.
    """
    return Ids(_batches(files))


def _batches(files: Sequence[Path]) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    for file in files:
        with _readable(file):
            reader = pa.ipc.open_file(pa.memory_map(str(file)))
            if (
                reader.schema.names[:2] != ["address", "id"]
                or reader.schema.field("address").type != pa.int64()
            ):
                raise DataError(
                    str(file),
                    "columns address (int64) and id first",
                    ", ".join(reader.schema.names),
                    "build the index again",
                )
            batches += [_validated(reader.get_batch(number)) for number in range(reader.num_record_batches)]
    return batches


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch itself; pa.ArrowInvalid where its lengths and buffers do not fit, or an address is missing."""
    batch.validate()
    if batch["address"].null_count:
        raise pa.ArrowInvalid("a row without an address")
    return batch


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            str(file),
            "an Arrow IPC file",
            " ".join(str(error).split()),
            "restore it, or build the index again",
        ) from None
