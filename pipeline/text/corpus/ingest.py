"""The corpus of a night: what changed since the one before is read, new and changed rows become units, bad rows are set aside, and the tables of all rows are kept.

Memory is that of one bucket of ids, one unit, and eight bytes for every dead row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import digest_of
from pipeline.errors import DataError, Defect, TransientError
from pipeline.settings import CorpusSettings
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.units import (
    ChangedRow,
    ChangedRows,
    Changes,
    Corpus,
    CorpusUnit,
    FileRef,
    InputFile,
    total,
)
from pipeline.text.corpus.columns import Columns
from pipeline.text.corpus.keys import bucket_count, by_id, read_part
from pipeline.text.corpus.normalize import NORMALIZER_VERSION
from pipeline.text.corpus.quarantine import QuarantineFile
from pipeline.text.corpus.read_pass import CHANGED, Progress, Reading
from pipeline.text.corpus.reader import survey
from pipeline.text.corpus.resolve_ids import NOWHERE, Drawn, line_schema, losers, set_aside, settle
from pipeline.text.corpus.sources import SourceFile, list_files, unchanged
from pipeline.text.corpus.spill import spilled
from pipeline.text.corpus.tables import Tables
from pipeline.text.corpus.unit_writer import Rolling

_VERSION = 2  # of the tables: a corpus of another one is rolled anew
_MOST_DEAD = 0.3  # of the units' rows: they cost space, a place in memory, and time wherever a unit is read
_MOST_UNITS = 2  # times as many units as full ones would be, and
_SMALL_UNITS = 200  # this many: nightly additions make small units, each a file to open


def reading_digest(corpus: CorpusSettings) -> str:
    """sha256 (hex) over how rows are read: under another one, unchanged files are read again."""
    return digest_of(
        {
            "corpus": corpus.model_dump(mode="json", include={"id", "text", "keep", "max_rows", "bad_files"}),
            "normalizer": NORMALIZER_VERSION,
        }
    )


def corpus_digest(corpus: CorpusSettings, files: list[SourceFile]) -> str:
    """sha256 (hex) over all that decides what the rows are: by it a corpus that did not change is known without being read."""
    used = {corpus.id, corpus.text, *corpus.keep}
    listing = [
        [
            file.name,
            file.size,
            file.stamp,
            file.format,
            {key: value for key, value in file.partitions.items() if key in used},
        ]
        for file in files
    ]
    return digest_of({"reading": reading_digest(corpus), "files": listing})


def record_path(corpus_id: str) -> str:
    """Where the corpus of that id has its record: what `ingest` writes last."""
    return f"keys/{corpus_id}/corpus.json"


@dataclass(frozen=True)
class Parent:
    """The corpus to go on from. next_ordinal: the first that no release has used; anew: why none of its units can live on, empty where they can."""

    corpus: Corpus | None = None
    next_ordinal: int = 0
    anew: str = ""


def ingest(
    corpus: CorpusSettings,
    unit_rows: int,
    store: Store,
    parent: Parent | None = None,
    *,
    on_progress: Progress = lambda rows, size: None,
) -> Corpus:
    """The corpus as units in `store`: those of the parent, with the rows that died, and new ones for what is new or changed. Only files that changed are read.

    Equal input, parent and settings give the same bytes; a corpus that is there already is not made again. Rows are taken in (file name, row) order.
    DataError when a file is unusable (unless corpus.bad_files=skip), no good row is left, or more than corpus.max_quarantined were set aside.
    """
    files = list_files(corpus)
    digest, before = corpus_digest(corpus, files), _usable(parent or Parent(), store)
    corpus_id = digest_of(
        [
            _VERSION,
            digest,
            before.corpus.id if before.corpus else None,
            before.next_ordinal,
            before.anew,
            unit_rows,
        ]
    )
    known = known_corpus(store, corpus_id)
    if known is None:
        with store.scratch() as scratch:
            known = _Night(
                corpus, unit_rows, store, scratch, digest, corpus_id, files, before, on_progress
            ).run()
    return _accepted(known, corpus, store)


def known_corpus(store: Store, corpus_id: str) -> Corpus | None:
    """The corpus that an earlier run left; None when there is none, or files of it are gone or cut short."""
    try:
        found = Corpus.load(store, record_path(corpus_id))
    except DataError:  # cut off in the middle by a file system without hard links
        return None
    return found if found is not None and not _missing(store, found) else None


def _missing(store: Store, corpus: Corpus) -> str | None:
    """A file of the corpus that is not there with its size."""
    single = (corpus.dead, corpus.quarantine, *(unit.copies for unit in corpus.units))
    tables = (*corpus.keys, *corpus.texts, *(reference for reference in single if reference))
    needed = {ref.path: ref.bytes for ref in tables} | {unit.path: unit.bytes for unit in corpus.units}
    folders = sorted({path.rpartition("/")[0] for path in needed})
    present = {entry.path: entry.size for folder in folders for entry in store.list(folder)}
    return next((path for path, size in needed.items() if present.get(path) != size), None)


def _usable(parent: Parent, store: Store) -> Parent:
    """The parent with a reason to roll anew, where there is one."""
    corpus, reason = parent.corpus, parent.anew
    if corpus is None:
        return parent
    if corpus.version != _VERSION:
        return Parent(None, parent.next_ordinal, "the corpus before was kept by another version")
    if lost := _missing(store, corpus):
        return Parent(None, parent.next_ordinal, f"the corpus before lacks {lost}")
    rows, dead = sum(unit.rows for unit in corpus.units), sum(unit.dead for unit in corpus.units)
    if not reason and dead > _MOST_DEAD * rows:
        reason = f"{dead / rows:.0%} of the units' rows were dead ({_MOST_DEAD:.0%} at most)"
    fullest = max((unit.rows for unit in corpus.units), default=1)
    if not reason and len(corpus.units) > max(_SMALL_UNITS, most := _MOST_UNITS * -(-rows // fullest)):
        reason = f"{len(corpus.units)} units, many of them small ({max(_SMALL_UNITS, most)} at most)"
    return Parent(corpus, parent.next_ordinal, reason)


@dataclass
class _Night:
    """One run."""

    corpus: CorpusSettings
    unit_rows: int
    store: Store
    scratch: Path
    digest: str
    corpus_id: str
    files: list[SourceFile]
    parent: Parent
    on_progress: Progress
    anew: str = field(init=False)
    kept: dict[str, InputFile] = field(init=False)
    changes: Changes = field(default_factory=Changes)
    examples: list[Drawn] = field(default_factory=list)
    dead: list[np.ndarray] = field(default_factory=list)
    revived: list[pa.Table] = field(default_factory=list)
    lost: list[pa.Table] = field(default_factory=list)

    def run(self) -> Corpus:
        self.anew = self.parent.anew
        self.kept = self._unchanged_files()
        columns = self._columns()
        if self.parent.corpus is not None and not self.anew and columns.schema != self._schema_before:
            self.anew = "id or kept columns are other ones now, or of other types"
            self.kept, columns = {}, self._columns()
        self.bad = QuarantineFile(self.scratch / "quarantine.parquet")
        self._carry_quarantine()
        reading = self._read(columns)
        buckets, wanted = self._settled(reading)
        self._check_unchanged()
        rolling = self._rolled(reading, wanted)
        tables = Tables(self.store, self.scratch, f"keys/{self.corpus_id}")
        return self._commit(reading, rolling, tables, tables.keys(buckets, rolling, self.names))

    @property
    def reuse(self) -> bool:
        """Whether rows that stayed keep their addresses."""
        return self.parent.corpus is not None and not self.anew

    @cached_property
    def names(self) -> list[str]:
        return [file.name for file in self.files]

    @cached_property
    def _schema_before(self) -> pa.Schema:
        assert self.parent.corpus is not None
        unit = self.parent.corpus.units[0]
        return pq.ParquetFile(self.store.open(unit.path, unit.sha256)).schema_arrow.remove_metadata()

    def _unchanged_files(self) -> dict[str, InputFile]:
        """Files that need not be read. A limit of rows makes each file's share depend on those before it, so then all are."""
        before = self.parent.corpus
        if (
            before is None
            or self.anew
            or before.reading != reading_digest(self.corpus)
            or self.corpus.max_rows is not None
        ):
            return {}
        known = {(file.name, file.size, file.stamp): file for file in before.files}
        return {
            file.name: known[key]
            for file in self.files
            if (key := (file.name, file.size, file.stamp)) in known
        }

    def _columns(self) -> Columns:
        """Types of id and kept columns: the files read tonight must fit those of the files that are not."""
        self.looked = survey(
            [file for file in self.files if file.name not in self.kept],
            self.corpus,
            self._schema_before if self.kept else None,
        )
        return self.looked.columns

    def _carry_quarantine(self) -> None:
        """What was set aside of files that did not change; losers of duplicate ids are found anew."""
        before = self.parent.corpus
        if before is None or before.quarantine is None or not self.kept:
            return
        names = pa.array(list(self.kept), pa.string())
        for batch in pq.ParquetFile(
            self.store.open(before.quarantine.path, before.quarantine.sha256)
        ).iter_batches():
            still = pc.and_(
                pc.is_in(batch["file"], value_set=names), pc.not_equal(batch["reason"], "duplicate_id")
            )
            self.bad.add(pa.Table.from_batches([batch]).filter(still))

    def _read(self, columns: Columns) -> Reading:
        numbers = {name: number for number, name in enumerate(self.names)}
        reading = Reading(self.corpus, self.looked, numbers, self.scratch, self.bad, self.on_progress)
        reading.read([file for file in self.files if file.name not in self.kept], self.unit_rows)
        return reading

    def _settled(self, reading: Reading) -> tuple[list[Path], np.ndarray]:
        """Tonight's lines bucket by bucket, in files, and which of the rows read need a row in a unit (mask by position)."""
        before = self.parent.corpus
        schema = line_schema(reading.looked.columns.id)
        keys = before.keys if before is not None and before.id_type == str(schema.field("id").type) else ()
        if before is not None and not keys:
            self.changes += Changes(deleted=before.rows)
        count = max(bucket_count(reading.rows + sum(file.good for file in self.kept.values())), len(keys))
        wanted, places, position = np.zeros(reading.rows, dtype=bool), [], reading.rows
        for part, now in enumerate(reading.lines.buckets(count)):
            settled = settle(
                self._before(keys, part, count, schema),
                schema.empty_table() if now is None else now,
                reuse=self.reuse,
            )
            held = settled.lines["position"].to_numpy().copy()
            known = held[settled.wanted] != NOWHERE
            wanted[held[settled.wanted[known]]] = True
            revived = settled.wanted[~known]
            held[revived] = np.arange(position, position + len(revived))
            position += len(revived)
            lines = settled.lines.set_column(
                settled.lines.schema.get_field_index("position"), "position", pa.array(held)
            )
            self.revived.append(lines.select(["file", "row", "position", "text_key"]).take(pa.array(revived)))
            self.dead.append(settled.dead)
            self.lost.append(losers(settled))
            self.changes += settled.changes
            self._draw(settled.examples, held)
            places.append(spilled(lines, self.scratch / f"bucket-{part}.arrow"))
        return places, wanted

    def _draw(self, examples: Sequence[Drawn], positions: np.ndarray) -> None:
        """Take a bucket's examples in, by the positions of their rows instead of their lines."""
        moved = [each.moved(positions) for each in examples]
        self.examples = (
            [old + new for old, new in zip(self.examples, moved, strict=True)] if self.examples else moved
        )

    def _changed_rows(self, rolling: Rolling) -> Iterator[ChangedRow]:
        """The examples with the addresses that their rows got."""
        for drawn in self.examples:
            for before, position in zip(drawn.before.tolist(), drawn.now.tolist(), strict=True):
                now = None if position == NOWHERE else int(rolling.addresses(np.array([position]))[0])
                yield ChangedRow(before=None if before == NOWHERE else before, now=now)

    def _before(self, keys: tuple[FileRef, ...], part: int, parts: int, schema: pa.Schema) -> pa.Table:
        """Last night's lines of a bucket, with the place of each file in tonight's listing where it need not be read."""
        table = read_part(self.store, keys, part, parts, by_id)
        if table is None:
            return schema.empty_table()
        file = pc.index_in(table["file"], value_set=pa.array(self.names, pa.string())).combine_chunks()
        still = pc.is_in(table["file"], value_set=pa.array(list(self.kept), pa.string())).combine_chunks()
        columns = {name: table[name] for name in ("id", "text_key", "carried", "row", "address")}
        columns |= {
            "file": pc.if_else(still, file, NOWHERE),
            "position": pa.repeat(pa.scalar(NOWHERE, pa.int64()), table.num_rows),
        }
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _rolled(self, reading: Reading, wanted: np.ndarray) -> Rolling:
        revived = pa.concat_tables(self.revived) if self.revived else None
        count = revived.num_rows if revived is not None else 0
        rolling = Rolling(
            self.store,
            self.scratch,
            reading.schema,
            self.unit_rows,
            self.parent.next_ordinal,
            reading.rows + count,
        )
        rolling.roll(
            reading, wanted, self._fetched(reading, revived) if revived is not None and count else ()
        )
        return rolling

    def _fetched(self, reading: Reading, revived: pa.Table) -> Iterator[pa.Table]:
        """Losers of earlier nights that are live now: their files are read again, though they did not change."""
        for number in np.unique(revived["file"].to_numpy()).tolist():
            mine = revived.filter(pc.equal(revived["file"], number)).sort_by("row")
            rows = reading.rows_of(self.files[number], mine["row"].to_numpy())
            if rows["text_key"].combine_chunks() != mine["text_key"].combine_chunks():
                raise TransientError(self.files[number].uri, "the texts that it had", "other ones", CHANGED)
            yield rows.append_column("position", mine["position"])
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        if not unchanged(self.files, self.corpus):
            raise TransientError(
                self.corpus.uri,
                "files that stay as they are",
                "files that changed while they were read",
                CHANGED,
            )

    def _living(self) -> tuple[list[CorpusUnit], np.ndarray]:
        """Units of the parent that still have live rows, and all dead addresses in them."""
        before = self.parent.corpus
        if before is None or not self.reuse:
            return [], np.zeros(0, dtype=np.int64)
        dead = np.sort(np.concatenate([Dead.load(self.store, before.dead).addresses, *self.dead]))
        ordinals, counts = np.unique(dead >> 32, return_counts=True)
        died = dict(zip(ordinals.tolist(), counts.tolist(), strict=True))
        units = [
            unit.model_copy(update={"dead": died.get(unit.ordinal, 0), "copies": None})
            for unit in before.units
        ]
        living = [unit for unit in units if unit.dead < unit.rows]
        return living, dead[np.isin(dead >> 32, [unit.ordinal for unit in living])]

    def _commit(self, reading: Reading, rolling: Rolling, tables: Tables, keys: list[FileRef]) -> Corpus:
        living, dead = self._living()
        old = self.parent.corpus.texts if self.parent.corpus else ()
        texts, units = tables.texts(rolling, old, np.array([unit.ordinal for unit in living], dtype=np.int64))
        if any(table.num_rows for table in self.lost):
            self.bad.add(set_aside(pa.concat_tables(self.lost), pa.array(self.names, pa.string())))
        inputs = {**self.kept, **reading.inputs}
        files = [inputs[name] for name in self.names]
        reasons = self.bad.close()
        listed = (
            tables.put(self.bad.place, f"quarantine/{self.corpus_id}.parquet", sum(reasons.values()))
            if reasons
            else None
        )
        counts = self._counts(files, [*living, *units], reasons.get("duplicate_id", 0))
        dead_ref = Dead(dead).store_in(self.store, f"keys/{self.corpus_id}/dead")
        made = Corpus(
            version=_VERSION,
            id=self.corpus_id,
            digest=self.digest,
            reading=reading_digest(self.corpus),
            parent=self.parent.corpus.id if self.parent.corpus else None,
            anew=self.anew,
            units=(*living, *units),
            keys=tuple(keys),
            texts=tuple(texts),
            dead=dead_ref,
            quarantine=listed,
            files=tuple(files),
            read_files=len(reading.inputs),
            changes=self.changes,
            counts=counts,
            id_type=str(reading.schema.field("id").type),
        )
        _accepted(made, self.corpus, self.store)
        self.store.write(
            ChangedRows.path(self.corpus_id), ChangedRows(rows=tuple(self._changed_rows(rolling))).to_json()
        )
        path = record_path(self.corpus_id)
        if not self.store.create(path, made.to_json()) and known_corpus(self.store, self.corpus_id) is None:
            self.store.write(path, made.to_json())
        return made

    def _counts(
        self, files: Iterable[InputFile], units: Iterable[CorpusUnit], duplicates: int
    ) -> dict[str, int]:
        sums = total(
            [
                {"rows": file.rows, "skipped": file.skipped, "quarantined": file.quarantined, **file.notes}
                for file in files
            ]
        )
        good = sum(unit.rows - unit.dead for unit in units)
        sums |= {"good": good, "quarantined": sums["quarantined"] + duplicates} | (
            {"quarantined_duplicate_id": duplicates} if duplicates else {}
        )
        if sums["rows"] != good + sums["quarantined"]:
            raise Defect(
                self.corpus.uri,
                f"{sums['rows']} rows = good + quarantined",
                f"{good} + {sums['quarantined']}",
                "report this with the corpus",
            )
        return dict(sorted(sums.items()))


def _accepted(made: Corpus, corpus: CorpusSettings, store: Store) -> Corpus:
    """`made` itself, when enough of its rows are good."""
    rows, good, bad = (made.counts[name] for name in ("rows", "good", "quarantined"))
    listed = f"see {store.uri_of(made.quarantine.path)}" if made.quarantine else "check corpus.uri"
    reasons = ", ".join(
        f"{name.removeprefix('quarantined_')} {count}"
        for name, count in made.counts.items()
        if name.startswith("quarantined_")
    )
    skipped = f", {made.counts['bad_files']} unusable files" if "bad_files" in made.counts else ""
    if not good:
        raise DataError(
            corpus.uri,
            "at least one row with an id and a text",
            f"{rows} rows{f' ({reasons})' if reasons else ''}{skipped}",
            listed,
        )
    if bad > corpus.max_quarantined * rows:
        found = f"{bad} of {rows} rows ({reasons})"
        allowed = f"at most {corpus.max_quarantined:.0%} bad rows (corpus.max_quarantined)"
        raise DataError(corpus.uri, allowed, found, f"{listed}, then mend the corpus or raise the share")
    return made
