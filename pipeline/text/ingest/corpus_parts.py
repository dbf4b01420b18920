"""Build a corpus's record from the records of all tasks; this module has no task of its own."""

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import Defect
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import (
    BAD_FILES,
    EMPTIED,
    LEFT_OUT,
    SKIPPED_FILES,
    UNMATCHED_IDS,
    Changes,
    Corpus,
    CorpusUnit,
    InputFile,
    RowCounts,
    TableBucket,
    sum_counts,
)
from pipeline.store.releases.change_examples import ChangedRow
from pipeline.store.rows.address import ordinal_of
from pipeline.text.formats.excluded_ids import excluded_ids
from pipeline.text.formats.quarantine import QuarantineFile
from pipeline.text.ingest.corpus_record import reading_digest
from pipeline.text.ingest.read_files import ReadRecord
from pipeline.text.ingest.resolve_bucket import BucketRecord
from pipeline.text.ingest.resolve_ids import EXAMPLES
from pipeline.text.ingest.sorted_rows import DeadRange, DuplicateRange
from pipeline.text.ingest.tonights_files import TonightsFiles
from pipeline.text.ingest.write_units import GroupRecord
from pipeline.text.key_tables.buckets import extend_bucket
from pipeline.text.key_tables.partitions import read_partitions

TABLES_VERSION = 2  # a corpus with tables of another version is rebuilt


class IngestOutcome(NamedTuple):
    """Results of the maps of an ingestion."""

    read: Sequence[ReadRecord]
    buckets: Sequence[BucketRecord]
    units: tuple[CorpusUnit, ...]
    keys: tuple[TableBucket, ...]
    texts: tuple[TableBucket, ...]
    dead: FileRef | None
    duplicates: Sequence[DuplicateRange]


def keep_units(parent: Corpus, dead: Iterable[DeadRange]) -> list[CorpusUnit]:
    """Return the parent's units that still have live rows."""
    dead_rows = {ordinal: count for dead_range in dead for ordinal, count in dead_range.units}
    updated = [  # their vectors exist by now, so none has to be copied from earlier units
        unit.model_copy(update={"dead": dead_rows.get(unit.ordinal, 0), "copies": None})
        for unit in parent.units
    ]
    return [unit for unit in updated if unit.dead < unit.rows]


def extend_keys(
    table: Sequence[TableBucket], buckets: Sequence[BucketRecord], groups: Sequence[GroupRecord]
) -> tuple[TableBucket, ...]:
    """Return the buckets of the key table `table` with tonight's bases and deltas."""
    files = [file for group in groups for file in group.keys]
    return tuple(
        extend_bucket(table, bucket.bucket, file, is_base=bucket.is_base)
        for bucket, file in zip(buckets, files, strict=True)
    )


def dead_addresses(
    work: Store, dead: Iterable[DeadRange], kept: Sequence[CorpusUnit]
) -> Iterator[np.ndarray]:
    """Yield the dead addresses of the kept units, ascending, range by range."""
    ordinals = [unit.ordinal for unit in kept]
    for dead_range in dead:
        for table in read_partitions(work, dead_range.addresses):
            addresses = table["address"].to_numpy()
            yield addresses[np.isin(ordinal_of(addresses), ordinals)]


def gather_quarantine(
    tonight: TonightsFiles, outcome: IngestOutcome, store: Store, work: Store, file: Path
) -> dict[str, int]:
    """Write all quarantined rows to a local file and return their number by reason.

    Rows of unchanged files come first, then those of the files read tonight, then rows with duplicate ids.
    """
    quarantine, unchanged = QuarantineFile(file), pa.array(list(tonight.unchanged), pa.string())
    for rows in _quarantine_of_unchanged(store, tonight.parent, unchanged):
        quarantine.add(rows)
    for file_of_item in (record.quarantine for record in outcome.read if record.quarantine):
        for batch in pq.ParquetFile(work.open(file_of_item.path)).iter_batches():
            quarantine.add(pa.Table.from_batches([batch]))
    for duplicates in outcome.duplicates:
        for rows in read_partitions(work, duplicates.rows):
            quarantine.add(rows)
    return quarantine.close()


def _quarantine_of_unchanged(store: Store, parent: Corpus | None, unchanged: pa.Array) -> Iterator[pa.Table]:
    """Yield the quarantined rows of unchanged files, except duplicate ids, which are resolved again."""
    previous = parent.quarantine if parent else None
    if previous is None or not len(unchanged):
        return
    for batch in pq.ParquetFile(previous.open(store)).iter_batches():
        is_unchanged = pc.is_in(batch["file"], value_set=unchanged)
        is_other = pc.not_equal(batch["reason"], "duplicate_id")
        yield pa.Table.from_batches([batch]).filter(pc.and_(is_unchanged, is_other))


def choose_changed_rows(groups: Sequence[GroupRecord]) -> Iterator[ChangedRow]:
    """Yield the examples of new, changed and deleted rows with the smallest text keys of all groups."""
    for lists_of_kind in zip(*(group.examples for group in groups), strict=True):
        examples = sorted(chain.from_iterable(lists_of_kind), key=attrgetter("key"))
        yield from (example.row for example in examples[:EXAMPLES])


def input_files(tonight: TonightsFiles, read: Sequence[ReadRecord]) -> tuple[InputFile, ...]:
    """Return all files of tonight's listing with their counts."""
    inputs = dict(tonight.unchanged)
    for file in (file for record in read for file in record.inputs):
        inputs[file.name] = _add_counts(inputs[file.name], file) if file.name in inputs else file
    parent_files = tonight.parent.files if tonight.parent else ()
    had_rows = {file.name for file in parent_files if file.good or EMPTIED in file.notes}
    return tuple(_marked(inputs[name], had_rows) for name in tonight.names)


def _marked(file: InputFile, had_rows: Container[str]) -> InputFile:
    """Return a file, with a note if it had rows on an earlier night and has none now."""
    is_known = not file.skipped and not {SKIPPED_FILES, BAD_FILES} & set(file.notes)
    if file.rows or not is_known or file.name not in had_rows:
        return file
    return file.model_copy(update={"notes": file.notes | {EMPTIED: 1}})


def _add_counts(one: InputFile, other: InputFile) -> InputFile:
    """Return a file with the sums of the counts of two of its parts."""
    return one.model_copy(update={**dict(one + other), "notes": sum_counts((one.notes, other.notes))})


def make_record(tonight: TonightsFiles, outcome: IngestOutcome, duplicates: int) -> Corpus:
    """Return the record of a corpus without its id, digest and quarantine.

    Args:
        duplicates: number of rows whose id an earlier row has.
    """
    parent = tonight.parent
    files = input_files(tonight, outcome.read)
    # if ids have another type, no row of last night can be found again
    lost = parent.rows if parent is not None and not tonight.keys else 0
    return Corpus(
        version=TABLES_VERSION,
        id="",
        digest="",
        reading=reading_digest(tonight.corpus),
        parent=parent.id if parent else None,
        rebuild_reason=tonight.rebuild_reason or "",
        units=outcome.units,
        keys=outcome.keys,
        texts=outcome.texts,
        dead=outcome.dead,
        files=files,
        read_files=len(files) - len(tonight.unchanged),
        changes=sum((bucket.changes for bucket in outcome.buckets), Changes(deleted=lost)),
        counts=_count_rows(tonight, files, outcome, duplicates),
        id_type=str(tonight.id_type),
        snapshot=next((file.table.snapshot for file in tonight.files if file.table), None),
    )


def _count_rows(
    tonight: TonightsFiles, files: Sequence[InputFile], outcome: IngestOutcome, duplicates: int
) -> dict[str, int]:
    """Sum the counts of the files, and check that every row is good, quarantined or filtered."""
    counts = sum_counts(file.notes for file in files)
    excluded = len(excluded_ids(tonight.corpus))
    if unmatched := max(0, excluded - counts.get("filtered_exclude", 0)):
        counts[UNMATCHED_IDS] = unmatched
    if tonight.left_out:
        counts[LEFT_OUT] = tonight.left_out
    good = sum(unit.rows - unit.dead for unit in outcome.units)
    if tonight.is_chunked:
        _check_chunks(tonight, outcome, good)
        counts["chunks"] = good
        good = sum(bucket.live_rows for bucket in outcome.buckets)
    if duplicates:
        counts["quarantined_duplicate_id"] = duplicates
    read = sum(files, RowCounts(quarantined=duplicates)).model_copy(update={"good": good})
    read.check(tonight.corpus.uri, "corpus")
    return dict(sorted({**counts, **read.model_dump()}.items()))


def _check_chunks(tonight: TonightsFiles, outcome: IngestOutcome, chunks: int) -> None:
    """Raise Defect unless the units have as many live chunks as the key table."""
    changes = [bucket.changes for bucket in outcome.buckets]
    expected = sum(change.new + change.changed + change.unchanged for change in changes)
    if chunks != expected:
        raise Defect(
            tonight.corpus.uri,
            f"{expected} live chunks, as in the key table",
            f"{chunks} in units",
            "report this with the corpus",
        )
