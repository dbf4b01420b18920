"""One pass over a corpus: good rows become units, bad rows a quarantine file, and every good row a line of the key table."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import digest_of
from pipeline.errors import DataError, Defect, TransientError
from pipeline.settings import CorpusSettings
from pipeline.store.schema import writer_options
from pipeline.store.store import Store, sha256_of
from pipeline.store.units import Corpus, FileRef, InputFile, UnitRecord
from pipeline.text.keys import Addresses, KeySpill, Losers, keys_schema, losers_of, mapped, spill
from pipeline.text.normalize import NORMALIZER_VERSION, control_characters, text_keys
from pipeline.text.quarantine import QuarantineFile, Rejected, duplicates, quarantine
from pipeline.text.reader import Survey, read_batches, survey
from pipeline.text.rows import SourceBatch, rechunk
from pipeline.text.sources import SourceFile, list_files, unchanged

_UNIT_BYTES = 64 << 20          # of text in one unit: some five copies of it are in memory at once, here and in a worker

Progress = Callable[[int, int], None]
"""called with the rows and the input bytes read so far"""


def corpus_digest(corpus: CorpusSettings, unit_rows: int, files: list[SourceFile]) -> str:
    """sha256 (hex) over all that decides what ingest writes: by it a corpus that did not change is known without being read."""
    settings = corpus.model_dump(mode="json", include={"id", "text", "keep", "max_rows", "bad_files"})
    used = {corpus.id, corpus.text, *corpus.keep}
    listing = [[file.name, file.size, file.stamp, file.format, {key: value for key, value in file.partitions.items() if key in used}] for file in files]
    return digest_of({"corpus": settings, "unit_rows": unit_rows, "normalizer": NORMALIZER_VERSION, "files": listing})


def record_path(digest: str) -> str:
    """Where the corpus of that digest has its record: what `ingest` writes last."""
    return f"keys/{digest}/corpus.json"


def ingest(corpus: CorpusSettings, unit_rows: int, store: Store, *, on_progress: Progress = lambda rows, size: None) -> Corpus:
    """The corpus as units in `store`, in (file name, row) order; the same bytes each time. One that is there already is not read again.

    DataError when a file is unusable (unless corpus.bad_files=skip), no good row is left, or more than corpus.max_quarantined were set aside.
    """
    files = list_files(corpus)
    digest = corpus_digest(corpus, unit_rows, files)
    known = known_corpus(store, digest)
    if known is None:
        with store.scratch() as scratch:
            known = _Pass(corpus, unit_rows, store, scratch, digest, files, on_progress).run()
    return _accepted(known, corpus, store)


def known_corpus(store: Store, digest: str) -> Corpus | None:
    """The corpus that an earlier run left; None when there is none, or files of it are gone or cut short."""
    try:
        found = Corpus.load(store, record_path(digest))
    except DataError:                                   # cut off in the middle by a file system without hard links
        return None
    if found is None:
        return None
    present = {entry.path: entry.size for prefix in ("units/corpus", f"keys/{digest}") for entry in store.list(prefix)}
    expected = {unit.path: unit.bytes for unit in found.units} | {bucket.path: bucket.bytes for bucket in found.keys}
    return found if expected.items() <= present.items() else None


@dataclass
class _Pass:
    """One run over the input."""

    corpus: CorpusSettings
    unit_rows: int
    store: Store
    scratch: Path
    digest: str
    files: list[SourceFile]
    on_progress: Progress
    counts: dict[str, int] = field(default_factory=dict)
    inputs: list[InputFile] = field(default_factory=list)
    done_bytes: int = 0
    schema: pa.Schema = field(init=False)
    keys: KeySpill = field(init=False)
    bad: QuarantineFile = field(init=False)

    def run(self) -> Corpus:
        looked = survey(self.files, self.corpus)
        self.schema = looked.columns.schema
        self.keys = KeySpill(self.scratch)
        self.bad = QuarantineFile(self.scratch / "quarantine.parquet")
        starts = [0]
        for ordinal, table in enumerate(rechunk(self._good(looked), self.unit_rows, _UNIT_BYTES)):
            pq.write_table(table, self._waiting(ordinal), **writer_options(self.schema))
            starts.append(starts[-1] + table.num_rows)
        if not unchanged(self.files, self.corpus):
            raise TransientError(self.corpus.uri, "files that stay as they are", "files that changed while they were read", "run again")
        sorted_keys, losers = self._duplicates()
        units = self._units(starts, losers)
        keys = self._key_files(sorted_keys, Addresses(np.array(starts), losers.position, np.array([unit is not None for unit in units])))
        return self._commit([unit for unit in units if unit is not None], keys)

    def _good(self, looked: Survey) -> Iterator[pa.Table]:
        """Unit rows in order; on the way the key table, the quarantine and the counts are filled."""
        for number, file in enumerate(self.files):
            error = looked.refused.get(file.name) or self._unreadable(file, looked)
            if error:
                self._count("bad_files", 1)
                self.bad.add(quarantine(file.name, [Rejected(-1, "bad_file", str(error))]))
                self.inputs.append(InputFile(name=file.name, size=file.size, stamp=file.stamp, rows=0, good=0, quarantined=0))
            else:
                yield from self._of_file(file, number, looked)
            self.done_bytes += file.size

    def _of_file(self, file: SourceFile, number: int, looked: Survey) -> Iterator[pa.Table]:
        good = bad = 0
        for batch in self._limited(file, looked):
            good, bad = good + batch.good.num_rows, bad + batch.bad.num_rows
            yield self._taken(batch, number, file)
            self.on_progress(self.counts["rows"], self.done_bytes + batch.position)
        expected = looked.rows[file.name]
        skipped = 0 if expected is None else expected - good - bad
        if skipped < 0 or (skipped and self._room()):
            raise Defect(file.uri, f"{expected} rows = good + quarantined + skipped", f"{good} + {bad} + {skipped}", "report this with the file")
        self._count("skipped", skipped)
        counts = {"rows": good + bad, "good": good, "quarantined": bad, "skipped": skipped}
        self.inputs.append(InputFile(name=file.name, size=file.size, stamp=file.stamp, **counts))

    def _limited(self, file: SourceFile, looked: Survey) -> Iterator[SourceBatch]:
        """Batches up to corpus.max_rows; a file without a row count that has more is counted, not read to its end."""
        counted = looked.rows[file.name] is not None
        for batch in () if counted and not self._room() else read_batches(file, self.corpus, looked.columns):
            room = self._room()
            if room:
                yield batch.head(room)
            if batch.rows > room:
                if not counted:
                    self._count("skipped_files", 1)
                return

    def _room(self) -> int:
        """Rows that may still be read."""
        return sys.maxsize if self.corpus.max_rows is None else self.corpus.max_rows - self.counts.get("rows", 0)

    def _unreadable(self, file: SourceFile, looked: Survey) -> DataError | None:
        """Why a file breaks off in the middle. Under bad_files=skip each is read to its end once before: a unit never holds half a file."""
        if self.corpus.bad_files == "error" or not self._room():
            return None
        try:
            for _ in read_batches(file, self.corpus, looked.columns):
                pass
        except DataError as error:
            return error
        return None

    def _taken(self, batch: SourceBatch, number: int, file: SourceFile) -> pa.Table:
        good = batch.good.combine_chunks()
        keys = pa.chunked_array([text_keys(chunk) for chunk in good["text"].chunks], self.schema.field("text_key").type)
        self.keys.add(good["id"], keys, number, good["row"])
        self.bad.add(batch.bad)
        self._count("rows", batch.rows)
        self._count("control_characters", sum(control_characters(chunk) for chunk in good["text"].chunks))
        self._count("surrogates_replaced", len(batch.surrogates))
        self._count("kept_values_dropped", len(batch.dropped))
        names = pa.chunked_array([pa.repeat(pa.scalar(file.name), good.num_rows)])
        columns = {**{name: good[name] for name in good.column_names}, "text_key": keys, "file": names}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    def _count(self, name: str, count: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + count

    def _waiting(self, ordinal: int) -> Path:
        return self.scratch / f"unit-{ordinal}.parquet"

    def _duplicates(self) -> tuple[list[Path], Losers]:
        """Buckets sorted and on disk, with a column that marks losers, and the losers of all of them by position."""
        places, found = [], []
        for number, bucket in enumerate(self.keys.buckets()):
            repeats, first = losers_of(bucket)
            lost = np.zeros(bucket.num_rows, dtype=bool)
            lost[repeats] = True
            places.append(spill(bucket.append_column("lost", pa.array(lost)), self.scratch / f"bucket-{number}.arrow"))
            position, files, rows = (bucket[name].to_numpy() for name in ("position", "file", "row"))
            found.append((position[repeats], files[first], rows[first]))
        position, files, rows = (np.concatenate(parts) for parts in zip(*found, strict=True)) if found else (np.zeros(0, dtype=np.int64),) * 3
        order = np.argsort(position)
        return places, Losers(position[order], files[order], rows[order])

    def _units(self, starts: list[int], losers: Losers) -> list[UnitRecord | None]:
        """Records of the published units; None for a unit of which nothing is left."""
        records: list[UnitRecord | None] = []
        kept = 0
        for ordinal, (start, stop) in enumerate(pairwise(starts)):
            lost = losers.between(start, stop)
            place = self._waiting(ordinal)
            if len(lost.position):
                self._without(place, lost, start)
            if stop - start == len(lost.position):
                records.append(None)
                continue
            records.append(self._published(place, kept, stop - start - len(lost.position)))
            kept += 1
        return records

    def _without(self, place: Path, lost: Losers, start: int) -> None:
        """Writes the unit again without its losers, which go into the quarantine."""
        table = pq.read_table(place, schema=self.schema)
        live = np.ones(table.num_rows, dtype=bool)
        live[lost.position - start] = False
        pq.write_table(table.filter(pa.array(live)), place, **writer_options(self.schema))
        gone = table.filter(pa.array(~live))
        detail = [f"{self.files[file].name} row {row} has it first" for file, row in zip(lost.winner_file, lost.winner_row, strict=True)]
        self.bad.add(duplicates(gone, detail))

    def _published(self, place: Path, ordinal: int, rows: int) -> UnitRecord:
        sha256, size = sha256_of(place), place.stat().st_size
        path = f"units/corpus/{sha256[:24]}.parquet"
        if self.store.size(path) != size:
            self.store.put(place, path)
        return UnitRecord(name=f"{ordinal:08d}", path=path, rows=rows, bytes=size, sha256=sha256)

    def _key_files(self, buckets: list[Path], addresses: Addresses) -> list[FileRef]:
        schema = keys_schema(self.schema.field("id").type)
        names = pa.array([file.name for file in self.files], pa.string())
        files = []
        for number, bucket in enumerate(map(mapped, buckets)):
            unit, row = addresses.of(bucket["position"].to_numpy(), bucket["lost"].to_numpy())
            place = self.scratch / "keys.parquet"
            table = pa.table([bucket["id"], bucket["text_key"], names.take(bucket["file"].combine_chunks()), bucket["row"], unit, row], schema=schema)
            pq.write_table(table, place, **writer_options(schema))
            files.append(self._put(place, f"keys/{self.digest}/{number:05d}.parquet", table.num_rows))
        return files

    def _put(self, place: Path, path: str, rows: int) -> FileRef:
        reference = FileRef(path=path, sha256=sha256_of(place), rows=rows, bytes=place.stat().st_size)
        self.store.put(place, path)
        return reference

    def _commit(self, units: list[UnitRecord], keys: list[FileRef]) -> Corpus:
        reasons = self.bad.close()
        bad = sum(count for reason, count in reasons.items() if reason != "bad_file")
        counts = {"rows": 0, **self.counts, "good": sum(unit.rows for unit in units), "quarantined": bad}
        counts |= {f"quarantined_{reason}": count for reason, count in sorted(reasons.items()) if reason != "bad_file"}
        if counts["rows"] != counts["good"] + bad:
            raise Defect(self.corpus.uri, f"{counts['rows']} rows read = good + quarantined", f"{counts['good']} + {bad}", "report this with the corpus")
        listed = self._put(self.bad.place, f"quarantine/{self.digest}.parquet", sum(reasons.values())) if reasons else None
        made = Corpus(
            digest=self.digest, units=tuple(units), keys=tuple(keys), quarantine=listed, files=tuple(self.inputs),
            counts=dict(sorted(counts.items())), id_type=str(self.schema.field("id").type),
        )
        _accepted(made, self.corpus, self.store)
        if not self.store.create(record_path(self.digest), made.to_json()) and known_corpus(self.store, self.digest) is None:
            self.store.write(record_path(self.digest), made.to_json())
        return made


def _accepted(made: Corpus, corpus: CorpusSettings, store: Store) -> Corpus:
    """`made` itself, when enough of its rows are good."""
    rows, good, bad = (made.counts[name] for name in ("rows", "good", "quarantined"))
    listed = f"see {store.uri_of(made.quarantine.path)}" if made.quarantine else "check corpus.uri"
    reasons = ", ".join(f"{name.removeprefix('quarantined_')} {count}" for name, count in made.counts.items() if name.startswith("quarantined_"))
    skipped = f", {made.counts['bad_files']} unusable files" if "bad_files" in made.counts else ""
    if not good:
        raise DataError(corpus.uri, "at least one row with an id and a text", f"{rows} rows{f' ({reasons})' if reasons else ''}{skipped}", listed)
    if bad > corpus.max_quarantined * rows:
        found = f"{bad} of {rows} rows ({reasons})"
        allowed = f"at most {corpus.max_quarantined:.0%} bad rows (corpus.max_quarantined)"
        raise DataError(corpus.uri, allowed, found, f"{listed}, then mend the corpus or raise the share")
    return made
