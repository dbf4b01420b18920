"""Records of finished units, and manifests made of them.

Equal work gives equal records: they contain no time, host or number of attempts.
"""

import builtins
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

import pyarrow as pa

from pipeline.config import Settings, canonical, digest_of
from pipeline.errors import DataError
from pipeline.store.base import Store, changed

SCHEMA_VERSION = 1  # of manifests; increased by changes that older versions would misread
_SEAL = "seal"


class Stored(Settings):
    """A value stored as one JSON file with a seal, the sha256 of its other fields."""

    def to_json(self) -> bytes:
        """Return the content of the file."""
        value = self.model_dump(mode="json")
        return canonical(value | {_SEAL: digest_of(value)}) + b"\n"

    @classmethod
    def from_json(cls, content: bytes, name: str) -> Self:
        """Parse the content of a file.

        Args:
            name: the file's URI for error messages.

        Raises:
            DataError: the file is damaged, was changed, or holds another kind of record.
            OtherSchema: the record has another schema version.
        """
        try:
            value = json.loads(content)
            seal = value.pop(_SEAL, None)  # files of the earliest versions have none
            if seal is not None and seal != (found := digest_of(value)):
                raise changed(name, str(seal), found)
            version = value.get("schema_version", SCHEMA_VERSION)
            if type(version) is not int or version != SCHEMA_VERSION:  # true and 1.0 equal 1 in Python
                newer = type(version) is int and version > SCHEMA_VERSION
                raise OtherSchema(
                    name,
                    f"schema_version {SCHEMA_VERSION}",
                    repr(version),
                    "it was written by a newer version: update this one"
                    if newer
                    else "it was changed or damaged: restore it, or roll back to an older release",
                )
            return cls.model_validate(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                name,
                f"a {cls.__name__} record",
                f"{type(error).__name__}: {str(error)[:200]}",
                "the file is damaged or of another version: delete it and run again",
            ) from None

    @classmethod
    def load(cls, store: Store, path: str) -> Self | None:
        """Load the record at `path`; None if there is none. Raises DataError as `from_json`."""
        try:
            return cls.from_json(store.read(path), store.uri_of(path))
        except FileNotFoundError:
            return None

    @classmethod
    def load_intact(cls, store: Store, path: str) -> Self | None:
        """Load the record that an earlier run wrote. Raises DataError as `from_json`.

        Returns None if it is missing or truncated, so that the caller redoes the work.
        """
        try:
            content = store.read(path)
        except FileNotFoundError:
            return None
        return cls.from_json(content, store.uri_of(path)) if content.endswith(b"}\n") else None

    @classmethod
    def read(cls, store: Store, reference: "FileRef") -> Self:
        """Read the record in a file that another record names.

        Raises:
            FileNotFoundError: there is no such file.
            DataError: as `from_json`, or the sha256 differs.
        """
        return cls.from_json(reference.read(store), store.uri_of(reference.path))

    @classmethod
    def load_complete(cls, store: Store, path: str) -> Self | None:
        """Load the record as `load_intact`; None also if a file that it names is missing or incomplete."""
        record = cls.load_intact(store, path)
        return record if record is not None and record.is_complete(store) else None

    def references(self) -> Iterator["FileRef"]:
        """Yield every file that a field names, and those that values among the fields name."""
        for _, value in self:
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, FileRef):
                    yield each
                elif isinstance(each, Stored):
                    yield from each.references()

    def is_complete(self, store: Store) -> bool:
        """Return whether every file of `references` exists with its size."""
        return all(reference.is_complete(store) for reference in self.references())


class OtherSchema(DataError):
    """A record has a schema version that this version of Manta does not know."""


class FileRef(Settings):
    """A reference to a stored file, with the digest of its content."""

    path: str
    sha256: str
    rows: int = 0
    bytes: int = 0

    def read(self, store: Store) -> builtins.bytes:
        """Return the content. Raises DataError if its sha256 differs."""
        return store.read_checked(self.path, self.sha256)

    def open(self, store: Store) -> pa.NativeFile:
        """Open the file as a seekable stream. Raises DataError if its sha256 differs."""
        return store.open(self.path, self.sha256)

    def local(self, store: Store) -> Path:
        """Return a path on this machine with the content. Raises DataError if its sha256 differs."""
        return store.local(self.path, self.sha256)

    def is_complete(self, store: Store) -> bool:
        """Return whether the file exists with its size."""
        return store.size(self.path) == self.bytes


class UnitRecord(Stored):
    """The record of a finished unit. Each is created once."""

    name: str
    path: str
    rows: int
    bytes: int
    sha256: str
    counts: dict[str, int] = {}
    space_id: str | None = None
    numerics_id: str | None = None
    copied: dict[str, int] = {}
    """vectors copied from units of other numerics: numerics_id -> count; all others are of `numerics_id`"""
    source: str | None = None
    """sha256 of the unit that this one was made from"""
    dropped: tuple[int, ...] = ()
    """rows of the source without a row in this unit, ascending"""
    moments: FileRef | None = None
    quarantine: FileRef | None = None

    @property
    def file(self) -> FileRef:
        """The file with the unit's rows."""
        return FileRef(path=self.path, sha256=self.sha256, rows=self.rows, bytes=self.bytes)

    def references(self) -> Iterator[FileRef]:
        yield self.file
        yield from super().references()


class InputFile(Settings):
    """One input file of the corpus and the counts of its rows: rows = good + quarantined.

    Rows that lose to another row with the same id count as good, because the winner may be in another file.
    """

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
    """Rows that became live in one night."""

    ordinal: int
    """number of the unit, which never changes: the upper half of its rows' addresses"""
    dead: int = 0
    """number of its rows that are no longer live"""
    copies: FileRef | None = None
    """rows whose text is in an earlier unit: (row, source), where source is the address there"""


class Changes(Settings):
    """Numbers of live rows by comparison with the previous corpus, matched by id."""

    new: int = 0
    changed: int = 0
    """rows whose text or kept columns differ"""
    deleted: int = 0
    unchanged: int = 0

    @property
    def any(self) -> bool:
        """True if any row is new, changed or deleted."""
        return bool(self.new or self.changed or self.deleted)

    def __add__(self, other: "Changes") -> "Changes":
        return Changes(**total((dict(self), dict(other))))


class Corpus(Stored):
    """The record of a corpus: units of good rows, tables of all rows, and quarantined rows.

    The record is complete: a corpus made from an earlier one does not need that one's record.
    """

    version: int = 1
    id: str
    """the files of its tables are below keys/<id>"""
    digest: str
    """digest of the input's listing and of the reader's settings; equal if the corpus did not change"""
    reading: str = ""
    """digest of the reader's settings; if it changes, all files are read again"""
    parent: str | None = None
    """id of the corpus that this one was made from"""
    anew: str = ""
    """why all rows were written to new units; empty if the parent's units are reused"""
    units: tuple[CorpusUnit, ...]
    keys: tuple[FileRef, ...] = ()
    """the key table, in buckets by hash of id: one entry per good input row, duplicates of an id included"""
    texts: tuple[FileRef, ...] = ()
    """rows of the units by text_key, in buckets"""
    dead: FileRef | None = None
    quarantine: FileRef | None = None
    files: tuple[InputFile, ...] = ()
    read_files: int = 0
    """number of files read for this corpus; the others did not change"""
    changes: Changes = Changes()
    counts: dict[str, int] = {}
    """rows (of all files), good, quarantined, quarantined_<reason>, skipped, control_characters ..."""
    id_type: str = "string"

    @property
    def rows(self) -> int:
        """Number of live rows."""
        return sum(unit.rows - unit.dead for unit in self.units)

    @property
    def next_ordinal(self) -> int:
        """The first ordinal after those of the units."""
        return max((unit.ordinal for unit in self.units), default=-1) + 1

    def paths(self) -> set[str]:
        """Return the paths of `references`."""
        return {reference.path for reference in self.references()}


class Manifest(Stored):
    """The units that one stage made, in order, and the ids of its inputs."""

    schema_version: int = 1
    stage: str
    units: tuple[UnitRecord, ...]
    parents: tuple[str, ...] = ()
    settings_digest: str = ""

    @property
    def id(self) -> str:
        """sha256 of the content; equal work has equal ids."""
        return digest_of(self.model_dump(mode="json"))

    @property
    def rows(self) -> int:
        """Number of rows in all units."""
        return sum(unit.rows for unit in self.units)

    def counts(self) -> dict[str, int]:
        """Return the sums of the units' counts, by name."""
        return total(unit.counts for unit in self.units)


def counts_under(prefix: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts whose name begins with `prefix`, by the rest of the name."""
    return {name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix)}


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum counts by name."""
    sums: Counter[str] = Counter()
    for mapping in counts:
        sums.update(mapping)
    return dict(sums)
