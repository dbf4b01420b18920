"""Rewrite the records of corpora: other units, tables, dead rows and quarantine, and fewer good rows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import digest_of
from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.erase.find import ErasedIds, ErasedRows, buckets_of
from pipeline.flows.erase.tables import (
    KeyBucket,
    RemovedLines,
    RewriteKeyBucket,
    RewriteTextBucket,
    TextBucket,
    sum_removed,
)
from pipeline.store.records.dead import Dead
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import CHUNKS_READ, FILTERED, Corpus, CorpusUnit, InputFile, TableBucket
from pipeline.store.records.write_once import store_table_by_content
from pipeline.store.rows.address import ordinal_of
from pipeline.store.rows.schema import writer_options
from pipeline.text.ingest.corpus_record import record_path

FILTERED_ERASED = "filtered_erased"
"""Name of a count: rows that were erased although the corpus had them."""
_DUPLICATES = "quarantined_duplicate_id"


@dataclass(frozen=True)
class Erasure:
    """A running erasure: its rows, and the place of new files."""

    context: FlowContext
    id: str
    rows: ErasedRows
    addresses: FileRef
    """addresses of all erased rows"""

    @property
    def tables(self) -> str:
        """Folder of the new tables."""
        return f"keys/{self.id}"


class RewrittenTables(NamedTuple):
    """The buckets that replace those of all corpora, by the files of the old bucket."""

    keys: Mapping[tuple[FileRef, ...], KeyBucket]
    texts: Mapping[tuple[FileRef, ...], TextBucket]

    @property
    def shared_keys(self) -> frozenset[bytes]:
        """Text keys of erased rows that other rows have, too."""
        return frozenset(key for bucket in self.texts.values() for key in bucket.shared)


def rewrite_tables(erasure: Erasure, corpora: Sequence[Corpus]) -> RewrittenTables:
    """Rewrite the buckets of all corpora that may have lines of erased rows, each once, on the workers."""
    store, rows = erasure.context.store, erasure.rows
    hashes = np.array([int.from_bytes(key[:8], "big") for key in rows.keys], dtype=np.uint64)
    units = frozenset(unit.ordinal for corpus in corpora for unit in corpus.units)
    keys, texts = dict[tuple[FileRef, ...], TableBucket](), dict[tuple[FileRef, ...], TableBucket]()
    for corpus in corpora:
        for number in rows.erased.buckets(len(corpus.keys)):
            keys[files_of_bucket(corpus.keys[number])] = corpus.keys[number]
        for number in buckets_of(hashes, len(corpus.texts)):
            texts[files_of_bucket(corpus.texts[number])] = corpus.texts[number]
    rewrite_keys = RewriteKeyBucket(store, rows.erased, f"{erasure.tables}/ids")
    rewrite_texts = RewriteTextBucket(store, erasure.addresses, rows.keys, units, f"{erasure.tables}/texts")
    new_keys = map_in_order(erasure.context, rewrite_keys, list(keys.values()))
    new_texts = map_in_order(erasure.context, rewrite_texts, list(texts.values()))
    return RewrittenTables(dict(zip(keys, new_keys, strict=True)), dict(zip(texts, new_texts, strict=True)))


def files_of_bucket(bucket: TableBucket) -> tuple[FileRef, ...]:
    """Return the files of a bucket, which identify its content."""
    return tuple(bucket.references())


class RewrittenCorpus(NamedTuple):
    """A corpus without the erased rows."""

    corpus: Corpus
    removed: tuple[RemovedLines, ...]
    """lines that its key table lost"""


def rewrite_corpus(
    erasure: Erasure, corpus: Corpus, units: Mapping[str, FileRef], tables: RewrittenTables
) -> RewrittenCorpus:
    """Return the record of a corpus without the erased rows; the same record if it had none.

    Args:
        units: the files that replace corpus units, by path.
        tables: the new buckets of the tables.
    """
    keys = [tables.keys.get(files_of_bucket(bucket)) for bucket in corpus.keys]
    texts = [tables.texts.get(files_of_bucket(bucket)) for bucket in corpus.texts]
    removed = tuple(line for bucket in keys if bucket for line in bucket.removed)
    quarantine, duplicates = _rewrite_quarantine(erasure, corpus)
    dead = _dead_rows(erasure, corpus)
    live_units = _live_units(corpus, dead, units)
    changes = {
        "keys": tuple(new.bucket if new else old for old, new in zip(corpus.keys, keys, strict=True)),
        "texts": tuple(new.bucket if new else old for old, new in zip(corpus.texts, texts, strict=True)),
        "units": live_units,
        "quarantine": quarantine,
    }
    if all(getattr(corpus, name) == value for name, value in changes.items()):
        return RewrittenCorpus(corpus, ())
    ordinals = [unit.ordinal for unit in live_units]
    kept = dead.addresses[np.isin(ordinal_of(dead.addresses), ordinals)]
    new = corpus.model_copy(
        update={
            **changes,
            "id": digest_of([corpus.id, erasure.id]),
            "dead": Dead(kept).store_in(erasure.context.store, f"{erasure.tables}/dead"),
            "files": _input_files(corpus.files, removed),
            "counts": _counts(corpus, removed, duplicates),
        }
    )
    return RewrittenCorpus(new, removed)


def store_corpus(erasure: Erasure, corpus: Corpus) -> FileRef:
    """Store the record of a corpus at its path, and return the reference to it."""
    content, path = corpus.to_json(), record_path(corpus.id)
    erasure.context.store.write(path, content)
    return FileRef.of(path, content, corpus.rows)


def _dead_rows(erasure: Erasure, corpus: Corpus) -> Dead:
    """Return the dead rows of a corpus together with its erased rows."""
    known = Dead.load(erasure.context.store, corpus.dead)
    return Dead(np.union1d(known.addresses, erasure.rows.addresses(corpus.units)))


def _live_units(corpus: Corpus, dead: Dead, units: Mapping[str, FileRef]) -> tuple[CorpusUnit, ...]:
    """Return the corpus's units that still have live rows, with their new files."""
    counted = (
        (unit, len(dead.rows_of(unit.ordinal))) if unit.path in units else (unit, unit.dead)
        for unit in corpus.units
    )
    return tuple(
        unit.model_copy(update={"dead": count} | _file_fields(units.get(unit.path)))
        for unit, count in counted
        if count < unit.rows
    )


def _file_fields(file: FileRef | None) -> dict[str, str | int]:
    return {"path": file.path, "sha256": file.sha256, "bytes": file.bytes} if file else {}


def _input_files(files: Sequence[InputFile], removed: Sequence[RemovedLines]) -> tuple[InputFile, ...]:
    """Return the input files with the erased rows counted as filtered."""
    by_file = defaultdict[str, list[RemovedLines]](list)
    for each in removed:
        by_file[each.file].append(each)

    def without(file: InputFile) -> InputFile:
        if file.name not in by_file:
            return file
        sums = sum_removed(by_file[file.name])
        notes = file.notes | {FILTERED_ERASED: file.notes.get(FILTERED_ERASED, 0) + sums["documents"]}
        if CHUNKS_READ in notes:
            notes[CHUNKS_READ] -= sums["lines"]
        counts = {"good": file.good - sums["documents"], FILTERED: file.filtered + sums["documents"]}
        return file.model_copy(update={**counts, "notes": notes})

    return tuple(map(without, files))


def _counts(corpus: Corpus, removed: Sequence[RemovedLines], duplicates: int) -> dict[str, int]:
    """Return the counts of a corpus with the erased rows counted as filtered.

    Args:
        duplicates: number of these rows whose id an earlier row has.
    """
    sums = sum_removed(removed)
    if not sums["documents"] and not duplicates:
        return corpus.counts
    counts = dict(corpus.counts)
    filtered = sums["live_documents"] + duplicates
    counts["good"] -= sums["live_documents"]
    counts["quarantined"] -= duplicates
    counts[FILTERED] = counts.get(FILTERED, 0) + filtered
    counts[FILTERED_ERASED] = counts.get(FILTERED_ERASED, 0) + filtered
    if duplicates:
        counts[_DUPLICATES] -= duplicates
    if corpus.is_chunked:
        counts["chunks"] -= sums["live_lines"]
        if CHUNKS_READ in counts:
            counts[CHUNKS_READ] -= sums["lines"]
    return dict(sorted((name, count) for name, count in counts.items() if count or name != _DUPLICATES))


def quarantined_rows(erased: ErasedIds, table: pa.Table) -> np.ndarray:
    """Return a mask (n,) of quarantined rows whose id is to be erased."""
    return erased.mask(table["id"]) if table.num_rows else np.zeros(0, dtype=bool)


def _rewrite_quarantine(erasure: Erasure, corpus: Corpus) -> tuple[FileRef | None, int]:
    """Store the quarantined rows without values of the erased ids.

    Rows with a repeated id are left out. Of others, place and reason stay, so that their number does.

    Returns:
        The new file, and the number of rows that were left out.
    """
    store = erasure.context.store
    if corpus.quarantine is None:
        return None, 0
    table = pq.read_table(corpus.quarantine.open(store))
    is_erased = quarantined_rows(erasure.rows.erased, table)
    if not is_erased.any():
        return corpus.quarantine, 0
    is_duplicate = is_erased & np.asarray(pc.equal(table["reason"], "duplicate_id"))
    mask = pa.array(is_erased)
    for name in ("id", "detail", "excerpt"):
        column = pc.if_else(mask, pa.scalar(None, pa.string()), table[name])
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    kept = table.filter(pa.array(~is_duplicate))
    if not kept.num_rows:
        return None, int(is_duplicate.sum())
    stem = f"quarantine/{erasure.id}"
    return store_table_by_content(store, kept, stem, **writer_options(kept.schema)), int(is_duplicate.sum())
