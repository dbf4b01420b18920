"""Ingest a corpus for a night: read the files that changed, write new units, and quarantine bad rows.

Memory holds a few buckets of ids, one unit, and the names and counts of all files.

The driver plans the items of each map from the totals of the previous map, and writes the record last.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config import digest_of
from pipeline.errors import TransientError
from pipeline.log import announce, counted
from pipeline.settings import CorpusSettings
from pipeline.store.files.base import Store, in_threads, sha256_of
from pipeline.store.files.local import ScratchStore
from pipeline.store.records.dead import write_address_pieces
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import (
    BAD_FILES,
    EMPTIED,
    VALUES_DROPPED,
    Corpus,
    CorpusUnit,
    TableBucket,
    describe_unmatched,
)
from pipeline.store.releases.change_examples import ChangedRows
from pipeline.text.ingest.bucket_plan import bucket_bytes, group_buckets
from pipeline.text.ingest.copy_table import GatherCopies, ResolveTexts, UnitsToCopyTo
from pipeline.text.ingest.corpus_parts import (
    TABLES_VERSION,
    IngestOutcome,
    choose_changed_rows,
    dead_addresses,
    extend_keys,
    gather_quarantine,
    input_files,
    keep_units,
    make_record,
)
from pipeline.text.ingest.corpus_record import (
    check_good_rows,
    corpus_digest,
    first_missing_file,
    load_complete_corpus,
    store_record,
    tables_folder,
    work_folder,
)
from pipeline.text.ingest.read_files import FileToRead, ReadFiles, ReadRecord, group_files
from pipeline.text.ingest.read_rows import ReadPart
from pipeline.text.ingest.resolve_bucket import BucketRecord, ResolveBucket
from pipeline.text.ingest.revive_rows import CHANGED_REMEDY, ReviveRows, files_of_rows
from pipeline.text.ingest.sorted_rows import (
    DeadRange,
    DuplicateRange,
    SortDead,
    SortDuplicates,
    row_ranges,
    unit_ranges,
)
from pipeline.text.ingest.tonights_files import PreviousCorpus, TonightsFiles, inspect_files
from pipeline.text.ingest.write_units import BucketGroup, GroupRecord, WriteUnits
from pipeline.text.key_tables.buckets import extend_bucket
from pipeline.text.key_tables.keys import bucket_count
from pipeline.text.sources.sources import is_unchanged, list_corpus
from pipeline.text.task_map import (
    IngestTask,
    OnProgress,
    TaskMap,
    TaskRunner,
    WorkFolder,
    ignore_progress,
    map_here,
)


@dataclass
class Ingestion:
    """One run of `ingest`: its arguments, and the state of its steps."""

    tonight: TonightsFiles
    unit_rows: int
    store: Store
    work: WorkFolder
    """folder of temporary files"""
    scratch: Path
    map_tasks: TaskMap
    digest: str
    """digest of the input; see `corpus_digest`"""
    corpus_id: str
    next_ordinal: int
    waiting: Corpus | None
    """corpus of the candidate that waits; see `PreviousCorpus`"""
    on_progress: OnProgress

    def run(self) -> Corpus:
        """Write units, tables and quarantine, then the record."""
        read = self._read()
        buckets = self._resolve(read)
        revived = self._revive(buckets)
        self._check_unchanged()
        kept, dead = self._keep_units(buckets)
        groups = self._group(read, buckets, revived)
        text_buckets = self._count_text_buckets(buckets, kept)
        written = self._write_units(read, groups, revived, text_buckets)
        texts, new_units = self._resolve_texts(groups, written, kept, text_buckets)
        changed = ChangedRows(
            rows=tuple(choose_changed_rows(written)),
            deleted_documents=sum(bucket.deleted_documents for bucket in buckets),
            filtered_documents=sum(bucket.filtered_documents for bucket in buckets),
        )
        self.store.write(ChangedRows.path(self.corpus_id), changed.to_json())
        outcome = IngestOutcome(
            read=read,
            buckets=buckets,
            units=(*kept, *new_units),
            keys=extend_keys(self.tonight.keys, buckets, written),
            texts=texts,
            dead=dead,
            duplicates=self._sort_duplicates(read, buckets),
        )
        return self._commit(outcome)

    def remove_work(self) -> None:
        """Remove the temporary files."""
        store = self.work.store
        in_threads(store.delete, [entry.path for entry in store.list(self.work.path)])

    def _map(self, task: IngestTask, items: Sequence[Any]) -> list[Any]:
        """Apply a task to all items. Returns the results in the order of the items."""
        results = dict(self.map_tasks(task, items))
        return [results[number] for number in range(len(items))]

    def _read(self) -> list[ReadRecord]:
        """Read the files that changed."""
        items = group_files(self.tonight.to_read, together=self.tonight.corpus.max_rows is not None)
        rows = size = 0

        def report(rows_of_item: int, bytes_of_item: int) -> None:
            self.on_progress(rows + rows_of_item, size + bytes_of_item)

        in_this_process = self.map_tasks is map_here
        listener = report if in_this_process else ignore_progress  # other processes cannot call it
        task = ReadFiles(
            self.work,
            self.tonight.corpus,
            self.tonight.survey.columns,
            self.tonight.partitions,
            listener,
        )
        records: dict[int, ReadRecord] = {}
        for number, record in self.map_tasks(task, items):
            records[number] = record
            rows += sum(file.rows for file in record.inputs)
            size += sum(file.size for file in items[number].files)
            if not in_this_process:
                self.on_progress(rows, size)
        return [records[number] for number in range(len(items))]

    def _resolve(self, read: Sequence[ReadRecord]) -> list[BucketRecord]:
        """Resolve the ids of all buckets."""
        parts = _parts(read)
        buckets = self.tonight.count_buckets(sum(part.rows for part in parts))
        task = ResolveBucket(
            self.work,
            parts,
            self.tonight.partitions,
            buckets,
            self.store,
            self.tonight.keys,
            self.tonight.other_keys,
            self.tonight.id_type,
            self.tonight.names,
            tuple(self.tonight.unchanged),
            self.tonight.reuse,
            unit_ranges(self.old_units),
            row_ranges(input_files(self.tonight, read)),
            tuple(record.filtered for record in read if record.filtered),
        )
        return self._map(task, range(buckets))

    def _keep_units(self, buckets: Sequence[BucketRecord]) -> tuple[list[CorpusUnit], FileRef | None]:
        """Return the previous corpus's units that still have live rows, and the file of their dead rows."""
        parent = self.tonight.parent
        if parent is None or not self.tonight.reuse:
            return [], None
        newly_dead = tuple(bucket.dead for bucket in buckets if bucket.dead)
        starts, dead = unit_ranges(parent.units), list[DeadRange]()
        if newly_dead or parent.dead:
            task = SortDead(self.work, self.store, parent.dead, newly_dead, starts)
            dead = self._map(task, range(len(starts)))
        kept = keep_units(parent, dead)
        addresses = dead_addresses(self.work.store, dead, kept)
        stem = f"{tables_folder(self.corpus_id)}/dead"
        return kept, write_address_pieces(self.store, self.scratch, addresses, stem)

    def _sort_duplicates(
        self, read: Sequence[ReadRecord], buckets: Sequence[BucketRecord]
    ) -> Sequence[DuplicateRange]:
        """Return the rows with duplicate ids, as rows of the quarantine."""
        duplicates = tuple(bucket.duplicates for bucket in buckets if bucket.duplicates)
        if not duplicates:
            return ()
        task = SortDuplicates(self.work, duplicates, self.tonight.id_type, self.tonight.names)
        return self._map(task, range(len(row_ranges(input_files(self.tonight, read)))))

    def _revive(self, buckets: Sequence[BucketRecord]) -> tuple[ReadPart, ...]:
        """Read the rows of unchanged files that were duplicates on an earlier night and are live now."""
        revived = tuple(bucket.revived for bucket in buckets if bucket.revived)
        if not revived:
            return ()
        indices = files_of_rows(self.work.store, revived)
        files = [FileToRead(self.tonight.files[index], index, None) for index in indices]
        task = ReviveRows(self.work, self.tonight.corpus, self.tonight.survey.columns, len(buckets), revived)
        return _parts(self._map(task, group_files(files, together=False)))

    def _check_unchanged(self) -> None:
        if not is_unchanged(self.tonight.files, self.tonight.corpus):
            self.remove_work()  # another run must not continue from it
            raise TransientError(
                self.tonight.corpus.uri,
                "files that do not change",
                "files that changed while they were read",
                CHANGED_REMEDY,
            )

    def _group(
        self, read: Sequence[ReadRecord], buckets: Sequence[BucketRecord], revived: Sequence[ReadPart]
    ) -> list[BucketGroup]:
        """Divide the buckets into groups whose new rows are written together."""
        sizes = bucket_bytes(self.work.store, _parts(read), self.tonight.partitions, len(buckets))
        revived_sizes = bucket_bytes(self.work.store, revived, len(buckets), len(buckets))
        return group_buckets(buckets, sizes, revived_sizes, self.unit_rows, self.next_ordinal)

    def _count_text_buckets(self, buckets: Sequence[BucketRecord], kept: Sequence[CorpusUnit]) -> int:
        """Return the number of buckets of the text table, at least as many as in the previous corpus."""
        old = self.tonight.parent.texts if self.tonight.parent else ()
        old_rows = sum(unit.rows for unit in self.old_units) if kept else 0
        waiting = self.waiting.texts if self.waiting else ()
        rows = sum(bucket.rows_written for bucket in buckets) + old_rows
        return max(bucket_count(rows), len(old), len(waiting))

    @property
    def old_units(self) -> tuple[CorpusUnit, ...]:
        """Units of the previous corpus."""
        return self.tonight.parent.units if self.tonight.parent else ()

    def _write_units(
        self,
        read: Sequence[ReadRecord],
        groups: Sequence[BucketGroup],
        revived: tuple[ReadPart, ...],
        text_buckets: int,
    ) -> list[GroupRecord]:
        """Write the new units and the key tables."""
        task = WriteUnits(
            self.work,
            self.store,
            tables_folder(self.corpus_id),
            self.tonight.schema,
            self.tonight.names,
            _parts(read),
            self.tonight.partitions,
            revived,
            sum(len(group.buckets) for group in groups),
            text_buckets,
            self.unit_rows,
        )
        return self._map(task, groups)

    def _resolve_texts(
        self,
        groups: Sequence[BucketGroup],
        written: Sequence[GroupRecord],
        kept: Sequence[CorpusUnit],
        buckets: int,
    ) -> tuple[tuple[TableBucket, ...], tuple[CorpusUnit, ...]]:
        """Write the text table, and for each new unit the rows whose text was encoded before.

        Returns:
            The buckets of the table, and the new units, which refer to their rows with copyable vectors.
        """
        old = self.tonight.parent.texts if self.tonight.parent else ()
        task = ResolveTexts(
            self.work,
            self.store,
            tables_folder(self.corpus_id),
            buckets,
            tuple(group.texts for group in written),
            tuple(group.first_ordinal for group in groups),
            old,
            tuple(unit.ordinal for unit in self.old_units),
            tuple(unit.ordinal for unit in kept),
            self.waiting.texts if self.waiting else (),
            tuple(unit.ordinal for unit in self.waiting.units if unit.ordinal >= self.next_ordinal)
            if self.waiting
            else (),
        )
        resolved = self._map(task, range(buckets))
        sources = tuple(bucket.sources for bucket in resolved)
        tables = tuple(
            extend_bucket(old, number, bucket.table, is_base=bucket.is_base)
            for number, bucket in enumerate(resolved)
        )
        items = [
            UnitsToCopyTo(group.number, record.units) for group, record in zip(groups, written, strict=True)
        ]
        if any(file.rows for file in sources):
            copies = GatherCopies(self.work, self.store, tables_folder(self.corpus_id), sources)
            return tables, tuple(unit for record in self._map(copies, items) for unit in record.units)
        return tables, tuple(unit for item in items for unit in item.units)

    def _commit(self, outcome: IngestOutcome) -> Corpus:
        """Write the quarantine, then the record."""
        tonight, file = self.tonight, self.scratch / "quarantine.parquet"
        reasons = gather_quarantine(tonight, outcome, self.store, self.work.store, file)
        quarantine = None
        if reasons:
            path, size = f"quarantine/{self.corpus_id}.parquet", file.stat().st_size
            quarantine = FileRef(path=path, sha256=sha256_of(file), rows=sum(reasons.values()), bytes=size)
            self.store.put(file, path)
        record = make_record(tonight, outcome, reasons.get("duplicate_id", 0)).model_copy(
            update={"id": self.corpus_id, "digest": self.digest, "quarantine": quarantine}
        )
        check_good_rows(record, tonight.corpus, self.store)
        store_record(self.store, record)
        return record


def _parts(records: Sequence[ReadRecord]) -> tuple[ReadPart, ...]:
    """Return the parts of all items, in the order of (file, row)."""
    return tuple(part for record in records for part in record.parts)


# All units are rebuilt if more than this proportion of their rows is dead: dead rows cost space, memory, and
# time whenever a unit is read.
_MAX_DEAD = 0.3
# All units are rebuilt if their number exceeds both _SMALL_UNITS and _MAX_UNITS times the number of full
# units that would be needed: every night adds small units, and each is a file to open.
_MAX_UNITS = 2
_SMALL_UNITS = 200
_SHOWN = 3  # names of files in a warning


def ingest(
    corpus: CorpusSettings,
    unit_rows: int,
    store: Store,
    parent: PreviousCorpus | None = None,
    runner: TaskRunner = TaskRunner(),
) -> Corpus:
    """Write a corpus to `store`: keep the parent's units, mark their dead rows, and write units of new rows.

    Only files that changed are read. Rows are taken in the order of (file name, row). Equal input, parent and
    settings give the same bytes; a corpus that is already complete is not written again.

    Args:
        corpus: settings that name the files and columns.
        unit_rows: largest number of rows of a unit.
        store: store of the units and tables.
        parent: the previous night's corpus; None if there is none.
        runner: runs the tasks that the work is divided into.

    Raises:
        DataError: a file is unusable (unless corpus.bad_files=skip), no row is good, or more than
            corpus.max_quarantined of the rows are quarantined.
        TransientError: a file changed while it was read.
    """
    listed = list_corpus(corpus)
    digest, parent = corpus_digest(corpus, listed.files), _usable_parent(parent or PreviousCorpus(), store)
    parent_facts = [parent.corpus and parent.corpus.id, parent.next_ordinal, parent.rebuild_reason or ""]
    corpus_id = digest_of([TABLES_VERSION, digest, *parent_facts, unit_rows])
    if parent.waiting is not None and parent.waiting.id != corpus_id:
        corpus_id = digest_of([TABLES_VERSION, digest, *parent_facts, unit_rows, parent.waiting.id])
    record = load_complete_corpus(store, corpus_id)
    if record is None:
        with store.scratch() as scratch:
            work = ScratchStore(str(scratch)) if runner.map_tasks is map_here else store
            ingestion = Ingestion(
                tonight=inspect_files(corpus, listed, parent, store, runner.map_tasks),
                unit_rows=unit_rows,
                store=store,
                work=WorkFolder(work, work_folder(corpus_id)),
                scratch=scratch,
                map_tasks=runner.map_tasks,
                digest=digest,
                corpus_id=corpus_id,
                next_ordinal=parent.next_ordinal,
                waiting=parent.waiting,
                on_progress=runner.on_progress,
            )
            record = _run(ingestion)
    check_good_rows(record, corpus, store)
    unreadable = _noted(record, BAD_FILES, "left out (corpus.bad_files=skip), because they cannot be read")
    emptied = _noted(record, EMPTIED, "had rows, and now none")
    sentences = (listed.warning, unreadable, emptied, _dropped(record), describe_unmatched(record.counts))
    for sentence in filter(None, sentences):
        announce(f"warning: {sentence}")
    return record


def _noted(record: Corpus, note: str, text: str) -> str | None:
    """Return a sentence about the files with this note; None if there are none."""
    names = [file.name for file in record.files if note in file.notes]
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{counted(len(names), 'file')} {text}: {', '.join(names[:_SHOWN])}{more}" if names else None


def _dropped(record: Corpus) -> str | None:
    """Return a sentence about kept values that became null; None if there are none."""
    values = counted(record.counts.get(VALUES_DROPPED, 0), "kept value")
    return _noted(record, VALUES_DROPPED, f"with {values} that do not fit their column and became null")


def _run(ingestion: Ingestion) -> Corpus:
    """Run an ingestion and remove its temporary files.

    If another run of the same ingestion removes them first, its record is returned.
    """
    try:
        record = ingestion.run()
    except (FileNotFoundError, TransientError):
        finished = load_complete_corpus(ingestion.store, ingestion.corpus_id)
        if finished is None:
            raise
        record = finished
    ingestion.remove_work()
    return record


def _usable_parent(parent: PreviousCorpus, store: Store) -> PreviousCorpus:
    """Return the parent with the reason to rebuild, if any, and without a corpus that cannot be used."""
    waiting, corpus = parent.waiting, parent.corpus
    if waiting and (waiting.version != TABLES_VERSION or first_missing_file(store, waiting)):
        parent = replace(parent, waiting=None)
    if corpus is None:
        return parent
    # Do not reword the reasons: they are part of the corpus's id.
    if corpus.version != TABLES_VERSION:
        why = "the corpus before was kept by another version"
        return replace(parent, corpus=None, rebuild_reason=why)
    if missing := first_missing_file(store, corpus):
        return replace(parent, corpus=None, rebuild_reason=f"the corpus before lacks {missing}")
    rows, dead = sum(unit.rows for unit in corpus.units), sum(unit.dead for unit in corpus.units)
    fullest = max((unit.rows for unit in corpus.units), default=1)
    max_units = max(_SMALL_UNITS, _MAX_UNITS * -(-rows // fullest))
    reason = parent.rebuild_reason
    if not reason and dead > _MAX_DEAD * rows:
        reason = f"{dead / rows:.0%} of the units' rows were dead ({_MAX_DEAD:.0%} at most)"
    if not reason and len(corpus.units) > max_units:
        reason = f"{len(corpus.units)} units, many of them small ({max_units} at most)"
    return replace(parent, rebuild_reason=reason)
