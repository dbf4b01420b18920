"""The work of one ingestion, from the changed files to the corpus's record."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import Defect, TransientError
from pipeline.settings import CorpusSettings
from pipeline.store.address import ordinal_of
from pipeline.store.base import Store
from pipeline.store.changes import ChangedRow, ChangedRows
from pipeline.store.dead import Dead
from pipeline.store.units import Corpus, CorpusUnit, InputFile, total
from pipeline.text.corpus.bucket_pass import BucketPass
from pipeline.text.corpus.corpus_record import (
    check_good_rows,
    load_complete_corpus,
    reading_digest,
    record_path,
)
from pipeline.text.corpus.quarantine import QuarantineFile
from pipeline.text.corpus.read_pass import CHANGED_REMEDY, OnProgress, ReadPass
from pipeline.text.corpus.reader import CorpusSurvey, survey_files
from pipeline.text.corpus.resolve_ids import ABSENT, quarantine_duplicates
from pipeline.text.corpus.sources import SourceFile, is_unchanged
from pipeline.text.corpus.tables import Tables
from pipeline.text.corpus.unit_writer import UnitWriter

TABLES_VERSION = 2  # a corpus with tables of another version is rebuilt


@dataclass
class Ingestion:
    """One ingestion."""

    corpus: CorpusSettings
    unit_rows: int
    store: Store
    scratch: Path
    digest: str
    corpus_id: str
    files: list[SourceFile]
    parent: Corpus | None
    next_ordinal: int
    rebuild_reason: str
    """why all rows get new addresses; empty if the parent's units are kept"""
    on_progress: OnProgress
    kept: dict[str, InputFile] = field(init=False)
    """files that are not read tonight, by name"""
    bad: QuarantineFile = field(init=False)

    def run(self) -> Corpus:
        """Write units, tables and quarantine, then the record."""
        self.kept = self._unchanged_files()
        survey = self._survey()
        if self._reuse and survey.columns.schema != self._parent_schema:
            self.rebuild_reason = "id or kept columns, or their types, have changed"
            self.kept = {}
            survey = self._survey()
        self.bad = QuarantineFile(self.scratch / "quarantine.parquet")
        self._carry_quarantine()
        read = self._read(survey)
        buckets = BucketPass(self.store, self.scratch, self.parent, self.names, list(self.kept), self._reuse)
        buckets.resolve(read, kept_rows=sum(file.good for file in self.kept.values()))
        self._check_unchanged()
        return self._commit(read, buckets, self._write_units(read, buckets))

    @property
    def _reuse(self) -> bool:
        """Return whether unchanged rows keep their addresses."""
        return self.parent is not None and not self.rebuild_reason

    @cached_property
    def names(self) -> list[str]:
        """Names of the files in tonight's listing."""
        return [file.name for file in self.files]

    @cached_property
    def _parent_schema(self) -> pa.Schema:
        assert self.parent is not None
        return pq.ParquetFile(self.parent.units[0].file.open(self.store)).schema_arrow.remove_metadata()

    def _unchanged_files(self) -> dict[str, InputFile]:
        """Files that need not be read.

        With a limit of rows there are none, because the rows read of a file depend on the files before it.
        """
        if (
            self.parent is None
            or self.rebuild_reason
            or self.corpus.max_rows is not None
            or self.parent.reading != reading_digest(self.corpus)
        ):
            return {}
        known = {(file.name, file.size, file.stamp): file for file in self.parent.files}
        found = (known.get((file.name, file.size, file.stamp)) for file in self.files)
        return {file.name: file for file in found if file}

    def _survey(self) -> CorpusSurvey:
        """Inspect the files to be read; their types must fit those of the files that are kept."""
        files = [file for file in self.files if file.name not in self.kept]
        return survey_files(files, self.corpus, self._parent_schema if self.kept else None)

    def _carry_quarantine(self) -> None:
        """Copy the quarantined rows of kept files, except duplicate ids, which are resolved again."""
        before = self.parent.quarantine if self.parent else None
        if before is None or not self.kept:
            return
        names = pa.array(list(self.kept), pa.string())
        for batch in pq.ParquetFile(before.open(self.store)).iter_batches():
            other = pc.not_equal(batch["reason"], "duplicate_id")
            kept = pc.and_(pc.is_in(batch["file"], value_set=names), other)
            self.bad.add(pa.Table.from_batches([batch]).filter(kept))

    def _read(self, survey: CorpusSurvey) -> ReadPass:
        index = {name: number for number, name in enumerate(self.names)}
        read = ReadPass(self.corpus, survey, index, self.scratch, self.bad, self.on_progress)
        read.read([file for file in self.files if file.name not in self.kept], self.unit_rows)
        return read

    def _write_units(self, read: ReadPass, buckets: BucketPass) -> UnitWriter:
        revived = buckets.revived()
        positions = read.rows + revived.num_rows
        writer = UnitWriter(
            self.store, self.scratch, read.schema, self.unit_rows, self.next_ordinal, positions
        )
        writer.write(read, buckets.wanted, self._read_revived(read, revived) if revived.num_rows else ())
        return writer

    def _read_revived(self, read: ReadPass, revived: pa.Table) -> Iterator[pa.Table]:
        """Read rows of unchanged files that lost their id on an earlier night and are live now."""
        for number in np.unique(revived["file"].to_numpy()).tolist():
            wanted = revived.filter(pc.equal(revived["file"], number)).sort_by("row")
            rows = read.rows_of(self.files[number], wanted["row"].to_numpy())
            if rows["text_key"] != wanted["text_key"]:
                raise TransientError(
                    self.files[number].uri, "the texts that it had before", "other texts", CHANGED_REMEDY
                )
            yield rows.append_column("position", wanted["position"])
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        if not is_unchanged(self.files, self.corpus):
            raise TransientError(
                self.corpus.uri,
                "files that do not change",
                "files that changed while they were read",
                CHANGED_REMEDY,
            )

    def _commit(self, read: ReadPass, buckets: BucketPass, writer: UnitWriter) -> Corpus:
        """Write the tables, then the record."""
        tables = Tables(self.store, self.scratch, f"keys/{self.corpus_id}")
        kept_units, dead = self._kept_units(buckets)
        ordinals = np.array([unit.ordinal for unit in kept_units], dtype=np.int64)
        texts, new_units = tables.texts(writer, self.parent.texts if self.parent else (), ordinals)
        units = (*kept_units, *new_units)
        reasons = self._close_quarantine(buckets)
        path, bad = f"quarantine/{self.corpus_id}.parquet", sum(reasons.values())
        inputs = {**self.kept, **read.inputs}
        files = tuple(inputs[name] for name in self.names)
        made = Corpus(
            version=TABLES_VERSION,
            id=self.corpus_id,
            digest=self.digest,
            reading=reading_digest(self.corpus),
            parent=self.parent.id if self.parent else None,
            anew=self.rebuild_reason,
            units=units,
            keys=tuple(tables.keys(buckets.files, writer, self.names)),
            texts=tuple(texts),
            dead=Dead(dead).store_in(self.store, f"keys/{self.corpus_id}/dead"),
            quarantine=tables.put(self.bad.path, path, bad) if reasons else None,
            files=files,
            read_files=len(read.inputs),
            changes=buckets.changes,
            counts=self._counts(files, units, reasons.get("duplicate_id", 0)),
            id_type=str(read.schema.field("id").type),
        )
        check_good_rows(made, self.corpus, self.store)
        changed = tuple(_changed_rows(buckets, writer))
        self.store.write(ChangedRows.path(self.corpus_id), ChangedRows(rows=changed).to_json())
        self._write_record(made)
        return made

    def _write_record(self, made: Corpus) -> None:
        """Create the record; replace it if an earlier run's is damaged or its files are incomplete."""
        path, content = record_path(self.corpus_id), made.to_json()
        if not self.store.create(path, content) and not load_complete_corpus(self.store, self.corpus_id):
            self.store.write(path, content)

    def _kept_units(self, buckets: BucketPass) -> tuple[list[CorpusUnit], np.ndarray]:
        """(units of the parent that still have live rows, all dead addresses in them)."""
        if self.parent is None or not self._reuse:
            return [], np.zeros(0, dtype=np.int64)
        dead = np.sort(np.concatenate([Dead.load(self.store, self.parent.dead).addresses, *buckets.dead]))
        ordinals, counts = np.unique(ordinal_of(dead), return_counts=True)
        dead_rows = dict(zip(ordinals.tolist(), counts.tolist(), strict=True))
        updated = [
            unit.model_copy(update={"dead": dead_rows.get(unit.ordinal, 0), "copies": None})
            for unit in self.parent.units
        ]
        kept = [unit for unit in updated if unit.dead < unit.rows]
        return kept, dead[np.isin(ordinal_of(dead), [unit.ordinal for unit in kept])]

    def _close_quarantine(self, buckets: BucketPass) -> dict[str, int]:
        """Add the duplicate ids, and return the number of quarantined rows by reason."""
        if any(table.num_rows for table in buckets.duplicates):
            names = pa.array(self.names, pa.string())
            self.bad.add(quarantine_duplicates(pa.concat_tables(buckets.duplicates), names))
        return self.bad.close()

    def _counts(
        self, files: Iterable[InputFile], units: Iterable[CorpusUnit], duplicates: int
    ) -> dict[str, int]:
        names = ("rows", "skipped", "quarantined")
        sums = total({name: getattr(file, name) for name in names} | file.notes for file in files)
        sums["good"] = sum(unit.rows - unit.dead for unit in units)
        sums["quarantined"] += duplicates
        if duplicates:
            sums["quarantined_duplicate_id"] = duplicates
        if sums["rows"] != sums["good"] + sums["quarantined"]:
            raise Defect(
                self.corpus.uri,
                f"{sums['rows']} rows = good + quarantined",
                f"{sums['good']} + {sums['quarantined']}",
                "report this with the corpus",
            )
        return dict(sorted(sums.items()))


def _changed_rows(buckets: BucketPass, writer: UnitWriter) -> Iterator[ChangedRow]:
    """Yield the examples of changes with the addresses of their rows."""
    for examples in buckets.examples:
        for before, position in zip(examples.before.tolist(), examples.now.tolist(), strict=True):
            now = None if position == ABSENT else int(writer.addresses(np.array([position]))[0])
            yield ChangedRow(before=None if before == ABSENT else before, now=now)
