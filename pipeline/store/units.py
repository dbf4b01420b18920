"""Records of finished units and what they add up to. Equal work gives equal records: no time, host or attempt in any of them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Self

from pipeline.config import Settings, canonical, digest_of
from pipeline.errors import DataError
from pipeline.store.base import Store, changed

SCHEMA_VERSION = 1  # of manifests; a change that older versions would misread raises it
_SEAL = "seal"


class Stored(Settings):
    """A value kept as one JSON file, with a seal: the sha256 of all else in it."""

    def to_json(self) -> bytes:
        value = self.model_dump(mode="json")
        return canonical(value | {_SEAL: digest_of(value)}) + b"\n"

    @classmethod
    def from_json(cls, content: bytes, name: str) -> Self:
        """What `to_json` wrote; DataError for a file that is damaged, was changed, or is of another kind."""
        try:
            value = json.loads(content)
            seal = value.pop(_SEAL, None)  # files of the first roots have none
            if seal is not None and seal != (found := digest_of(value)):
                raise changed(name, str(seal), found)
            version = value.get("schema_version", SCHEMA_VERSION)
            if type(version) is not int or version != SCHEMA_VERSION:  # true and 1.0 equal 1 in Python
                raise _of_another_version(name, version)
            return cls.model_validate(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found, remedy = (
                f"{type(error).__name__}: {str(error)[:200]}",
                "the file is damaged or of another version; delete it and run again",
            )
            raise DataError(name, f"a {cls.__name__} record", found, remedy) from None

    @classmethod
    def load(cls, store: Store, path: str) -> Self | None:
        """The value at `path`; None when there is no such file."""
        try:
            return cls.from_json(store.read(path), store.uri_of(path))
        except FileNotFoundError:
            return None

    @classmethod
    def left(cls, store: Store, path: str) -> Self | None:
        """What an earlier run left at `path`; None where there is nothing, or only its beginning: either way the work is done again. DataError as `from_json`."""
        try:
            content = store.read(path)
        except FileNotFoundError:
            return None
        return cls.from_json(content, store.uri_of(path)) if content.endswith(b"}\n") else None


class OtherSchema(DataError):
    """A record of a schema that this version does not know."""


def _of_another_version(name: str, version: object) -> OtherSchema:
    newer = type(version) is int and version > SCHEMA_VERSION
    damaged = "it was changed or damaged: restore it, or roll back to an older release"
    remedy = "it was written by a newer version: update this one" if newer else damaged
    return OtherSchema(name, f"schema_version {SCHEMA_VERSION}", repr(version), remedy)


class FileRef(Settings):
    """A stored file by content."""

    path: str
    sha256: str
    rows: int = 0
    bytes: int = 0


def stored_by_content(store: Store, content: bytes, stem: str, suffix: str, rows: int = 0) -> FileRef:
    """A reference to bytes that are stored now, `stem` and the beginning of their sha256 as the name."""
    digest = sha256(content).hexdigest()
    reference = FileRef(path=f"{stem}-{digest[:12]}{suffix}", sha256=digest, rows=rows, bytes=len(content))
    if store.size(reference.path) != reference.bytes:
        store.write(reference.path, content)
    return reference


class UnitRecord(Stored):
    """What a finished unit leaves, created once."""

    name: str
    path: str
    rows: int
    bytes: int
    sha256: str
    counts: dict[str, int] = {}
    space_id: str | None = None
    numerics_id: str | None = None
    copied: dict[str, int] = {}
    """vectors that were copied from earlier units, by the numerics_id of those; all others are of `numerics_id`"""
    source: str | None = None
    """sha256 of the unit that this one was made from"""
    dropped: tuple[int, ...] = ()
    """rows of the source that have no row here, ascending"""
    moments: FileRef | None = None
    quarantine: FileRef | None = None

    def sizes(self) -> dict[str, int]:
        """Bytes of every file that it names, by path."""
        return {self.path: self.bytes} | {
            ref.path: ref.bytes for ref in (self.moments, self.quarantine) if ref
        }

    def is_whole(self, store: Store) -> bool:
        """Whether every file that it names is there, in full."""
        return all(store.size(path) == size for path, size in self.sizes().items())


class InputFile(Settings):
    """One file of the corpus as it was read: rows = good + quarantined. Losers of a duplicate id are good here: which row wins is not the file's to know."""

    name: str
    size: int
    stamp: str
    rows: int
    good: int
    quarantined: int
    skipped: int = 0
    notes: dict[str, int] = {}
    """quarantined_<reason>, control_characters, surrogates_replaced, bad_files ..."""


class CorpusUnit(UnitRecord):
    """Rows that became live in one night. ordinal: the unit's for life, the upper half of its rows' addresses; dead: how many of its rows are live no more."""

    ordinal: int
    dead: int = 0
    copies: FileRef | None = None
    """rows whose text stood in an earlier unit: (row, source), source the address there"""


class Changes(Settings):
    """Live rows of a corpus against those of the one before, by id. changed: the id was there with another text or other kept columns."""

    new: int = 0
    changed: int = 0
    deleted: int = 0
    unchanged: int = 0

    @property
    def any(self) -> bool:
        return bool(self.new or self.changed or self.deleted)

    def __add__(self, other: "Changes") -> "Changes":
        return Changes(
            new=self.new + other.new,
            changed=self.changed + other.changed,
            deleted=self.deleted + other.deleted,
            unchanged=self.unchanged + other.unchanged,
        )


class ChangedRow(Settings):
    """One of the changes, as an example: addresses of the row in the previous corpus and in this one; null where its id was not live."""

    before: int | None = None
    now: int | None = None


class ChangedRows(Stored):
    """A few new, changed and deleted rows of a corpus, drawn by the hash of their texts. For the report alone: prune takes the file like any other scratch."""

    rows: tuple[ChangedRow, ...] = ()

    @staticmethod
    def path(corpus_id: str) -> str:
        """Where those of the corpus of that id lie."""
        return f"candidates/changes/{corpus_id}.json"


class Corpus(Stored):
    """A corpus as units of good rows, with the tables of all rows and the rows that were set aside. One that grew out of another needs no record of that."""

    version: int = 1
    id: str
    """where its own files lie: below keys/<id>"""
    digest: str
    """of the input's listing and of how it is read: equal for a corpus that did not change"""
    reading: str = ""
    """of how rows are read: another one reads all files again"""
    parent: str | None = None
    """id of the corpus that it was made from"""
    anew: str = ""
    """why all rows were rolled into new units; empty where the parent's units live on"""
    units: tuple[CorpusUnit, ...]
    keys: tuple[FileRef, ...] = ()
    """the key table, in buckets by hash of id: one line per good input row, losers of a duplicate id included"""
    texts: tuple[FileRef, ...] = ()
    """rows of the units by text_key, in buckets"""
    dead: FileRef | None = None
    quarantine: FileRef | None = None
    files: tuple[InputFile, ...] = ()
    read_files: int = 0
    """of them read for this corpus; the others did not change"""
    changes: Changes = Changes()
    counts: dict[str, int] = {}
    """rows (read or known), good, quarantined, quarantined_<reason>, skipped, control_characters, surrogates_replaced ..."""
    id_type: str = "string"

    @property
    def rows(self) -> int:
        """Live rows."""
        return sum(unit.rows - unit.dead for unit in self.units)

    @property
    def next_ordinal(self) -> int:
        return max((unit.ordinal for unit in self.units), default=-1) + 1

    def references(self) -> Iterator[FileRef]:
        """Every file that it needs, its own record excepted."""
        yield from (*self.keys, *self.texts)
        yield from (reference for reference in (self.dead, self.quarantine) if reference)
        for unit in self.units:
            yield FileRef(path=unit.path, sha256=unit.sha256, rows=unit.rows, bytes=unit.bytes)
            if unit.copies:
                yield unit.copies

    def paths(self) -> set[str]:
        """Paths of `references`."""
        return {reference.path for reference in self.references()}


class Manifest(Stored):
    """Units of one stage in order, with where they come from."""

    schema_version: int = 1
    stage: str
    units: tuple[UnitRecord, ...]
    parents: tuple[str, ...] = ()
    settings_digest: str = ""

    @property
    def id(self) -> str:
        """sha256 of the content: equal for equal work."""
        return digest_of(self.model_dump(mode="json"))

    @property
    def rows(self) -> int:
        return sum(unit.rows for unit in self.units)

    def counts(self) -> dict[str, int]:
        return total(unit.counts for unit in self.units)


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums by name."""
    sums: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def create_record(store: Store, path: str, record: UnitRecord) -> UnitRecord:
    """The record that stands at `path` afterwards: `record`, or the one that another attempt created first.

    A record that cannot be read (a file system without hard links, stopped in the middle) is replaced, and one whose data are not there in full.
    """
    if store.create(path, record.to_json()):
        return record
    try:
        winner = UnitRecord.load(store, path)
    except DataError:
        winner = None
    if winner is None or not winner.is_whole(store):
        store.write(path, record.to_json())
        return record
    return winner
