"""Records of finished units, and manifests made of them.

Equal work gives equal records: they contain no time, host or number of attempts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pipeline.config import Settings, digest_of
from pipeline.store.stored import FileRef, Stored


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
