"""Rewrite the buckets of key and text tables without the lines of erased rows."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.erase.find import ErasedIds
from pipeline.flows.workers.tasks import PlainTask
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import TableBucket
from pipeline.store.records.write_once import store_table_by_content
from pipeline.store.rows.address import ordinal_of
from pipeline.store.rows.schema import writer_options
from pipeline.text.key_tables.buckets import read_key_bucket
from pipeline.text.key_tables.keys import TEXTS
from pipeline.text.key_tables.line_numbers import parents_of, rows_of_lines


class RemovedLines(NamedTuple):
    """Numbers of lines that a key table loses, all of one input file."""

    file: str
    lines: int
    documents: int
    """input rows: as many as lines, unless rows are cut into chunks"""
    live_lines: int
    """lines with an address"""
    live_documents: int


class KeyBucket(NamedTuple):
    """A bucket of a key table without the erased rows."""

    bucket: TableBucket
    """equal to the old one if no file of it has an erased row"""
    removed: tuple[RemovedLines, ...]
    """only lines that counted, not those that a later delta had replaced"""


@dataclass(frozen=True)
class RewriteKeyBucket(PlainTask[TableBucket, KeyBucket]):
    """Write a bucket as one base without the lines of the ids, if its base or a delta has any of them.

    A delta cannot just lose its lines: a line of the base that such a line replaces would count again.
    """

    store: Store
    erased: ErasedIds
    folder: str
    """folder of the new tables"""
    writes: bool = True
    """False: only count the lines"""

    def work(self, bucket: TableBucket) -> KeyBucket:
        if not any(map(self._has_any, bucket.references())):
            return KeyBucket(bucket, ())
        lines = read_key_bucket(self.store, [bucket], 0, 1)
        assert lines is not None, "there is one bucket"
        is_erased = self._mask(lines)
        removed = tuple(_count(lines.filter(pa.array(is_erased))))
        if not self.writes:
            return KeyBucket(bucket, removed)
        kept = lines.filter(pa.array(~is_erased))
        kept = kept.sort_by([(name, "ascending") for name in ("id", "file", "row")])
        return KeyBucket(_store(self.store, kept, self.folder), removed)

    def _has_any(self, file: FileRef) -> bool:
        return bool(self._mask(pq.read_table(file.open(self.store), columns=["id", "row"])).any())

    def _mask(self, lines: pa.Table) -> np.ndarray:
        if not lines.num_rows:
            return np.zeros(0, dtype=bool)
        return self.erased.mask(parents_of(lines["id"], lines["row"].to_numpy()))


def _count(lines: pa.Table) -> Iterable[RemovedLines]:
    """Yield the numbers of lines by input file."""
    files = np.array(lines["file"].to_pylist(), dtype=object)
    documents, is_live = rows_of_lines(lines["row"].to_numpy()), lines["address"].is_valid().to_numpy()
    for file in dict.fromkeys(files):
        of_file = files == file
        live = of_file & is_live
        yield RemovedLines(
            file,
            int(of_file.sum()),
            len(np.unique(documents[of_file])),
            int(live.sum()),
            len(np.unique(documents[live])),
        )


class TextBucket(NamedTuple):
    """A bucket of a text table without the erased rows."""

    bucket: TableBucket
    """equal to the old one if it has no erased row"""
    shared: tuple[bytes, ...]
    """text keys of erased rows that rows which stay have, too"""


@dataclass(frozen=True)
class RewriteTextBucket(PlainTask[TableBucket, TextBucket]):
    """Write a bucket as one base without the addresses, if its base or a delta has any of them."""

    store: Store
    addresses: FileRef
    """file of the addresses of all erased rows"""
    keys: frozenset[bytes]
    """text keys of the erased rows"""
    units: frozenset[int]
    """ordinals of all units of releases: a line of another unit with one of the keys goes, too"""
    folder: str

    def work(self, bucket: TableBucket) -> TextBucket:
        lines = pa.concat_tables(
            [TEXTS.empty_table()] + [pq.read_table(file.open(self.store)) for file in bucket.references()]
        )
        erased = pq.read_table(self.addresses.open(self.store))["address"].to_numpy()
        addresses = lines["address"].to_numpy()
        has_key = np.asarray(
            pc.is_in(lines["text_key"], value_set=pa.array(sorted(self.keys), pa.binary(16)))
        )
        is_known = np.isin(ordinal_of(addresses), list(self.units))
        is_erased = np.isin(addresses, erased) | (has_key & ~is_known)
        shared = lines.filter(pa.array(has_key & ~is_erased))["text_key"].unique().to_pylist()
        if not is_erased.any():
            return TextBucket(bucket, tuple(shared))
        kept = lines.filter(pa.array(~is_erased))
        kept = kept.sort_by([("text_key", "ascending"), ("address", "ascending")])
        return TextBucket(_store(self.store, kept, self.folder), tuple(shared))


def _store(store: Store, table: pa.Table, folder: str) -> TableBucket:
    table = table.combine_chunks()
    return TableBucket(**dict(store_table_by_content(store, table, folder, **writer_options(table.schema))))


def sum_removed(removed: Iterable[RemovedLines]) -> Counter[str]:
    """Return the sums of the numbers of all files, by name of the field."""
    sums: Counter[str] = Counter()
    for each in removed:
        sums.update({name: value for name, value in each._asdict().items() if name != "file"})
    return sums
