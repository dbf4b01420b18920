"""Records of finished units, of the corpus that they form, and of the units that a stage made.

Equal work gives equal records: they contain no time, host or number of attempts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from pipeline.config import Settings, digest_of
from pipeline.errors import Defect
from pipeline.log import counted
from pipeline.store.records.sealed_json import FileRef, Stored

CHUNKS_READ = "chunks_read"
"""Name of a count: the chunks into which the good rows of a file are cut."""
BAD_FILES = "bad_files"
"""Name of a count: files that cannot be read, and are left out as corpus.bad_files=skip allows."""
VALUES_DROPPED = "kept_values_dropped"
"""Name of a count: kept values that do not fit their column's type and became null."""
SKIPPED_FILES = "skipped_files"
"""Name of a count: files of which corpus.max_rows leaves out an unknown number of rows."""
EMPTIED = "emptied_files"
"""Name of a count: files that had rows on an earlier night and have none now."""
FILTERED = "filtered"
"""Name of a count: rows that corpus.where, corpus.exclude and erasures leave out; filtered_where,
filtered_exclude and filtered_erased are its parts."""
UNMATCHED_IDS = "unmatched_excluded_ids"
"""Name of a count: ids of corpus.exclude that no row has, at least: a row with a repeated id counts again."""
LEFT_OUT = "left_out_files"
"""Name of a count: files below the corpus's URI that are not read because of their names."""


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
    """vectors copied from units of other numerics: numerics_id -> count; the rest are of `numerics_id`"""
    source: str | None = None
    """sha256 of the unit that this one was made from"""
    dropped: tuple[int, ...] = ()
    """rows of the source that this unit leaves out, ascending"""
    moments: FileRef | None = None
    quarantine: FileRef | None = None
    sample: FileRef | None = None
    """some of the unit's rows with ids and vectors, if it is large"""

    @model_serializer(mode="wrap")
    def _without_missing_sample(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields without `sample` if there is none, as in records of earlier versions."""
        value: dict[str, Any] = serialize(self)
        if self.sample is None:
            del value["sample"]
        return value

    @property
    def file(self) -> FileRef:
        """The file with the unit's rows."""
        return FileRef(path=self.path, sha256=self.sha256, rows=self.rows, bytes=self.bytes)

    def references(self) -> Iterator[FileRef]:
        yield self.file
        yield from super().references()


class RowCounts(Settings):
    """Numbers of rows of a file, a corpus or a release: each row is good, quarantined or filtered."""

    rows: int = 0
    """number of rows that were read"""
    good: int = 0
    quarantined: int = 0
    skipped: int = 0
    """rows that were not read, because there are more than corpus.max_rows"""
    filtered: int = 0
    """rows that corpus.where and corpus.exclude leave out"""

    @model_serializer(mode="wrap")
    def _without_filtered(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields without `filtered` if there are none, as in records of earlier versions."""
        value: dict[str, Any] = serialize(self)
        if not self.filtered:
            value.pop(FILTERED, None)
        return value

    def __add__(self, other: "RowCounts") -> "RowCounts":
        names = RowCounts.model_fields
        return RowCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def accounted(self) -> int:
        """Number of rows that are good, quarantined or filtered."""
        return self.good + self.quarantined + self.filtered

    @property
    def wanted(self) -> int:
        """Number of rows that were read and not filtered."""
        return self.rows - self.filtered

    def check(self, where: str, what: str) -> None:
        """Raise Defect unless all rows of the `what` (file or corpus) named `where` are accounted for."""
        if self.rows != self.accounted:
            expected = f"{self.rows} rows = good + quarantined + filtered"
            found = f"{self.good} + {self.quarantined} + {self.filtered}"
            raise Defect(where, expected, found, f"report this with the {what}")


class InputFile(RowCounts):
    """One input file of the corpus and the counts of its rows.

    If several rows have one id, only one is live; the others count as good, too, because the live row may be
    in another file. A row that is cut into chunks counts once.
    """

    name: str
    size: int
    stamp: str
    notes: dict[str, int] = {}
    """counts by name: quarantined_<reason>, control_characters, surrogates_replaced, bad_files ..."""

    @property
    def good_lines(self) -> int:
        """Number of good rows, or of their chunks."""
        return self.notes.get(CHUNKS_READ, self.good)


class CorpusUnit(UnitRecord):
    """Rows that became live in one night."""

    ordinal: int
    """number of the unit, which never changes: the upper half of its rows' addresses"""
    dead: int = 0
    """number of its rows that are no longer live"""
    copies: FileRef | None = None
    """rows whose text is in an earlier unit: columns row and source, the address of the earlier row"""


class TableBucket(Stored):
    """One bucket of a key or text table: the file of its lines, and the changes of later nights."""

    path: str
    sha256: str
    rows: int = 0
    """number of lines of the file, without the lines of the deltas"""
    bytes: int = 0
    deltas: tuple[FileRef, ...] = ()
    """changes to the lines of the file, oldest first"""

    @model_serializer(mode="wrap")
    def _without_missing_deltas(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields without `deltas` if there are none, as in records of earlier versions."""
        value: dict[str, Any] = serialize(self)
        if not self.deltas:
            del value["deltas"]
        return value

    @property
    def base(self) -> FileRef:
        """The file of lines that the deltas change."""
        return FileRef(path=self.path, sha256=self.sha256, rows=self.rows, bytes=self.bytes)

    def references(self) -> Iterator[FileRef]:
        yield self.base
        yield from self.deltas


class Changes(Settings):
    """Numbers of new, changed, deleted and unchanged rows since the previous corpus, matched by id."""

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
        return Changes(**sum_counts((dict(self), dict(other))))


class TableSnapshot(Settings):
    """The snapshot of a Delta or Iceberg table that a corpus was read from."""

    format: Literal["Delta", "Iceberg"]
    id: int
    """number of the version of a Delta table, or id of the snapshot of an Iceberg table"""

    def __str__(self) -> str:
        return f"{'version' if self.format == 'Delta' else 'snapshot'} {self.id} of the {self.format} table"


class Corpus(Stored):
    """The record of a corpus: units of good rows, tables of all rows, and quarantined rows.

    It names every file of the corpus, so the record of the previous corpus is not needed.
    """

    version: int = 1
    id: str
    """the files of its tables are below keys/<id>"""
    digest: str
    """digest of the input's listing and of the reader's settings; equal if the corpus did not change"""
    reading: str = ""
    """digest of the reader's settings; if they change, all files are read again"""
    parent: str | None = None
    """id of the corpus that this one was made from"""
    rebuild_reason: str = Field("", alias="anew")
    """why all rows were written to new units; empty if the parent's units are reused"""
    units: tuple[CorpusUnit, ...]
    keys: tuple[TableBucket, ...] = ()
    """the key table, in buckets by hash of id: one entry per good input row, duplicates of an id included"""
    texts: tuple[TableBucket, ...] = ()
    """the text table, in buckets by hash of text: the units' rows by text_key"""
    dead: FileRef | None = None
    quarantine: FileRef | None = None
    files: tuple[InputFile, ...] = ()
    read_files: int = 0
    """number of files read for this corpus; the others are unchanged since the parent"""
    changes: Changes = Changes()
    counts: dict[str, int] = {}
    """counts of all files by name: rows, good, quarantined, quarantined_<reason>, filtered, skipped ... If
    rows are cut into chunks, these count the rows of the files, and `chunks` counts the live chunks"""
    id_type: str = "string"
    snapshot: TableSnapshot | None = None
    """the snapshot that was read, if the corpus is a table; a later snapshot may have equal rows"""

    @model_serializer(mode="wrap")
    def _without_missing_snapshot(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields without `snapshot` if there is none, as in records of earlier versions."""
        value: dict[str, Any] = serialize(self)
        if self.snapshot is None:
            del value["snapshot"]
        return value

    @property
    def rows(self) -> int:
        """Number of live rows."""
        return sum(unit.rows - unit.dead for unit in self.units)

    @property
    def has_same_rows(self) -> bool:
        """True if its live rows and their addresses equal the parent's."""
        return not self.rebuild_reason and not self.changes.any

    @property
    def is_chunked(self) -> bool:
        """True if the rows of the units are chunks."""
        return "chunks" in self.counts

    @property
    def next_ordinal(self) -> int:
        """The ordinal after the highest one of the units."""
        return max((unit.ordinal for unit in self.units), default=-1) + 1


class StageRecord(Stored):
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
        return sum_counts(unit.counts for unit in self.units)


def counts_under(prefix: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts whose name begins with `prefix`, by the rest of the name."""
    return {name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix)}


def describe_filtered(counts: Mapping[str, int]) -> str:
    """Describe the rows that are left out; "" if none."""
    if not (rows := counts.get(FILTERED, 0)):
        return ""
    counts_by_filter = counts_under("filtered_", counts)
    parts = ", ".join(f"{filter_name(name)} {count:,}" for name, count in counts_by_filter.items())
    return f"{counted(rows, 'row')} filtered ({parts})"


def filter_name(name: str) -> str:
    """Return what leaves rows out, as users know it, by the name of its count.

    >>> filter_name("where"), filter_name("erased")
    ('corpus.where', 'manta erase --forever')
    """
    return "manta erase --forever" if name == "erased" else f"corpus.{name}"


def describe_unmatched(counts: Mapping[str, int]) -> str:
    """Describe the ids of corpus.exclude that no row has; "" if none."""
    ids = counts.get(UNMATCHED_IDS, 0)
    return f"{counted(ids, 'id')} of corpus.exclude or more in no row of the corpus" if ids else ""


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum counts by name."""
    sums: Counter[str] = Counter()
    for mapping in counts:
        sums.update(mapping)
    return dict(sums)
