"""Buckets of a corpus's key table and text table: a base file, and deltas with the changes of later nights.

A line of the key table is identified by its file and row. A delta has the lines that were added or changed,
and marks for those that were deleted. Deltas of the text table only add lines; lines of units that are no
longer kept remain until the bucket is compacted, that is, written as a new base.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import TableBucket
from pipeline.store.rows.address import ordinal_of
from pipeline.store.rows.arrays import one_chunk
from pipeline.text.key_tables.keys import id_hashes, line_identities, text_hashes
from pipeline.text.key_tables.line_numbers import dense_numbers

# A bucket with fewer lines is always compacted, because writing it takes about as long as one request.
SMALL_ROWS = 1 << 15
_MAX_CHANGED = 0.1  # proportion: lines of a bucket's deltas / lines of its base
_MAX_DELTAS = 16  # deltas of a bucket: each is a file to open; nights with 1 % changed lines leave ten
_IDENTITY = ("file", "row")  # columns that identify a line of the key table
_MARK = "text_key"  # column that is null in the mark of a deleted line


def is_compacted(bucket: TableBucket | None, changed: int) -> bool:
    """Return whether a bucket is written as a new base.

    Args:
        bucket: the stored bucket; None if there is none with the same range of hashes.
        changed: number of lines of a new delta.
    """
    if bucket is None or bucket.rows < SMALL_ROWS:
        return True
    lines = sum(delta.rows for delta in bucket.deltas) + changed
    is_full = len(bucket.deltas) >= _MAX_DELTAS or lines > _MAX_CHANGED * bucket.rows
    return bool(changed) and is_full


def extend_bucket(
    buckets: Sequence[TableBucket], number: int, file: FileRef | None, *, is_base: bool
) -> TableBucket:
    """Return bucket `number` of a table with a new base or delta.

    Args:
        buckets: the stored buckets of the table; they may be empty if the file is a base.
        number: index of the bucket.
        file: the base or delta; None if no line changed.
        is_base: True if the file is a base.
    """
    if file is None:
        return buckets[number]
    if is_base:
        return TableBucket(**dict(file))
    return buckets[number].model_copy(update={"deltas": (*buckets[number].deltas, file)})


def delta_schema(keys: pa.Schema) -> pa.Schema:
    """Return the schema of the deltas of a key table."""
    index = keys.get_field_index(_MARK)
    return keys.set(index, keys.field(index).with_nullable(True))


def deletion_marks(deleted: pa.Table, keys: pa.Schema) -> pa.Table:
    """Return the marks of deleted lines in `delta_schema`; `deleted` has their id, file and row."""
    schema = delta_schema(keys)
    columns = {field.name: pa.nulls(deleted.num_rows, field.type) for field in schema}
    return pa.table(columns | {name: deleted[name] for name in deleted.column_names}, schema=schema)


def find_changed_lines(stored: pa.Table, listed: pa.Array, lines: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Compare the stored lines of a bucket of the key table with the lines that it will have.

    Args:
        stored: (m,) lines of the stored bucket.
        listed: names of the files in tonight's listing.
        lines: (n,) lines that the bucket will have; their `file` is an index in the listing.

    Returns:
        (n,) bool: True for lines that are not stored with equal values. (m,) bool: True for deleted lines.
    """
    if not stored.num_rows:
        return np.ones(lines.num_rows, dtype=bool), np.zeros(0, dtype=bool)
    files = pc.fill_null(pc.index_in(stored["file"], value_set=listed), -1).to_numpy()
    stored_rows, rows = dense_numbers(stored["row"].to_numpy(), lines["row"].to_numpy())
    before, now = line_identities(files, stored_rows), line_identities(lines["file"].to_numpy(), rows)
    order = np.argsort(before)
    positions = np.minimum(np.searchsorted(before[order], now), len(before) - 1)
    nearest = order[positions]  # the stored line with the same identity, if there is one
    is_same = before[nearest] == now
    is_deleted = np.ones(len(before), dtype=bool)
    is_deleted[nearest[is_same]] = False
    stored_lines = stored.take(pa.array(nearest))
    for name in ("id", "text_key", "carried", "address"):
        is_same &= _equal_or_null(lines[name], stored_lines[name])
    return ~is_same, is_deleted


def read_key_bucket(
    store: Store,
    buckets: Sequence[TableBucket],
    part: int,
    parts: int,
    columns: Sequence[str] | None = None,
) -> pa.Table | None:
    """Read one of `parts` buckets of a key table that is stored in as many or fewer buckets (both powers of
    two).

    Args:
        store: the corpus's store.
        buckets: the stored buckets.
        part: index of the bucket to read, 0 to parts - 1.
        parts: number of buckets to divide the table into.
        columns: columns to read, `id` among them; all of them by default.

    Returns:
        The lines of the bucket, in no order; None for a table without buckets.
    """
    if not buckets:
        return None
    bucket = buckets[part * len(buckets) // parts]
    names = columns
    if columns and (bucket.deltas or len(buckets) != parts):
        names = [*dict.fromkeys((*columns, *_IDENTITY, *([_MARK] if bucket.deltas else ())))]
    tables = _read_files(store, bucket, names)
    lines = tables[0].combine_chunks() if len(tables) == 1 else _merge(tables)
    if len(buckets) != parts:
        lines = _select_part(lines, part, parts, id_hashes)
    return lines.select(columns or lines.column_names)


def read_text_bucket(
    store: Store, buckets: Sequence[TableBucket], part: int, parts: int, units: Sequence[int]
) -> pa.Table | None:
    """Read one bucket of a text table like `read_key_bucket`.

    Args:
        units: ordinals of the units of the corpus: lines of other units are left out.

    Returns:
        The lines of the bucket; lines with the same text key are in the order of their addresses.
    """
    if not buckets:
        return None
    lines = pa.concat_tables(_read_files(store, buckets[part * len(buckets) // parts], None))
    lines = lines.filter(pa.array(np.isin(ordinal_of(lines["address"].to_numpy()), units))).combine_chunks()
    return lines if len(buckets) == parts else _select_part(lines, part, parts, text_hashes)


def _read_files(store: Store, bucket: TableBucket, names: Sequence[str] | None) -> list[pa.Table]:
    """Read the base and the deltas of a bucket."""
    columns = None if names is None else list(names)
    return in_threads(lambda file: pq.read_table(file.open(store), columns=columns), bucket.references())


def _merge(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the lines of a base and its deltas without those that a later delta changed or deleted."""
    schema = tables[0].schema  # in deltas, _MARK is nullable
    lines = pa.concat_tables([tables[0].cast(tables[-1].schema), *tables[1:]]).combine_chunks()
    files = one_chunk(lines["file"]).dictionary_encode().indices.to_numpy()
    identities = line_identities(files, *dense_numbers(lines["row"].to_numpy()))
    order = np.argsort(identities, kind="stable")
    is_last = np.append(identities[order[1:]] != identities[order[:-1]], True)
    remaining = lines.take(pa.array(np.sort(order[is_last])))
    return remaining.filter(remaining[_MARK].is_valid()).cast(schema).combine_chunks()


def _select_part(
    lines: pa.Table, part: int, parts: int, hashes: Callable[[pa.Table], np.ndarray]
) -> pa.Table:
    """Return the lines of a stored bucket whose hashes are in one of `parts` smaller buckets."""
    if not lines.num_rows:
        return lines
    bits = np.uint64(parts.bit_length() - 1)
    return lines.filter(pa.array((hashes(lines) >> (np.uint64(64) - bits)) == part))


def _equal_or_null(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    """Return (n,) bool: True for values that are equal, or null in both columns."""
    equal = pc.fill_null(pc.equal(left, right), False)
    both_null = pc.and_(left.is_null(), right.is_null())
    return np.asarray(pc.or_(equal, both_null).to_numpy())
