"""Records of finished units, and manifests made of them.

Equal work gives equal records: they contain no time, host or number of attempts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Self

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
                raise _of_another_version(name, version)
            return cls.model_validate(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found = f"{type(error).__name__}: {str(error)[:200]}"
            remedy = "the file is damaged or of another version: delete it and run again"
            raise DataError(name, f"a {cls.__name__} record", found, remedy) from None

    @classmethod
    def load(cls, store: Store, path: str) -> Self | None:
        """Load the value stored at `path`; None if it does not exist. Raises DataError as `from_json`."""
        try:
            return cls.from_json(store.read(path), store.uri_of(path))
        except FileNotFoundError:
            return None

    @classmethod
    def left(cls, store: Store, path: str) -> Self | None:
        """Load the record that an earlier run wrote. Raises DataError as `from_json`.

        Returns None if it is missing or truncated, so that the caller redoes the work.
        """
        try:
            content = store.read(path)
        except FileNotFoundError:
            return None
        return cls.from_json(content, store.uri_of(path)) if content.endswith(b"}\n") else None


class OtherSchema(DataError):
    """A record has a schema version that this version of Manta does not know."""


def _of_another_version(name: str, version: object) -> OtherSchema:
    newer = type(version) is int and version > SCHEMA_VERSION
    damaged = "it was changed or damaged: restore it, or roll back to an older release"
    remedy = "it was written by a newer version: update this one" if newer else damaged
    return OtherSchema(name, f"schema_version {SCHEMA_VERSION}", repr(version), remedy)


class FileRef(Settings):
    """A reference to a stored file, with the digest of its content."""

    path: str
    sha256: str
    rows: int = 0
    bytes: int = 0


def stored_by_content(store: Store, content: bytes, stem: str, suffix: str, rows: int = 0) -> FileRef:
    """Store bytes in a file named `stem`-<first digits of their sha256>`suffix`, unless it exists.

    Args:
        rows: number of rows in the file, recorded in the reference.
    """
    digest = sha256(content).hexdigest()
    reference = FileRef(path=f"{stem}-{digest[:12]}{suffix}", sha256=digest, rows=rows, bytes=len(content))
    if store.size(reference.path) != reference.bytes:
        store.write(reference.path, content)
    return reference


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

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each file that the record names, by path."""
        references = [reference for reference in (self.moments, self.quarantine) if reference]
        return {self.path: self.bytes} | {reference.path: reference.bytes for reference in references}

    def is_whole(self, store: Store) -> bool:
        """Return whether every file that the record names exists with its size."""
        return all(store.size(path) == size for path, size in self.sizes().items())


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
        return Changes(
            new=self.new + other.new,
            changed=self.changed + other.changed,
            deleted=self.deleted + other.deleted,
            unchanged=self.unchanged + other.unchanged,
        )


class ChangedRow(Settings):
    """The addresses of one new, changed or deleted row, as an example of the changes."""

    before: int | None = None
    """address in the previous corpus; None for a new row"""
    now: int | None = None
    """address in this corpus; None for a deleted row"""


class ChangedRows(Stored):
    """Examples of new, changed and deleted rows of a corpus, sampled by the hash of their texts.

    Only the report needs them: prune removes the file like other temporary files.
    """

    rows: tuple[ChangedRow, ...] = ()

    @staticmethod
    def path(corpus_id: str) -> str:
        """Return the path of the examples of the corpus `corpus_id`."""
        return f"candidates/changes/{corpus_id}.json"


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

    def references(self) -> Iterator[FileRef]:
        """Yield every file that the corpus needs, except its record."""
        yield from (*self.keys, *self.texts)
        yield from (reference for reference in (self.dead, self.quarantine) if reference)
        for unit in self.units:
            yield FileRef(path=unit.path, sha256=unit.sha256, rows=unit.rows, bytes=unit.bytes)
            if unit.copies:
                yield unit.copies

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


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum counts by name."""
    sums: dict[str, int] = {}
    for mapping in counts:
        for name, count in mapping.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def create_record(store: Store, path: str, record: UnitRecord) -> UnitRecord:
    """Store a record and return the one that counts: `record`, or that of an attempt which was faster.

    An existing record is replaced if it cannot be read (a process killed while it wrote, on a file system
    without hard links), or if files that it names are missing.
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
