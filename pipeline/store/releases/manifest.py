"""The manifest of a release: references, with digests, to all files that readers and the next night need."""

from collections.abc import Iterator
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from pipeline.config import digest_of
from pipeline.store.records.release_units import Units, UnitTable
from pipeline.store.records.sealed_json import SCHEMA_VERSION, FileRef, Stored
from pipeline.store.records.units import FILTERED, RowCounts

# Name of the gate for the recall on the user's own queries (gates.queries).
USER_QUERY_RECALL = "recall_at_10_queries"
# Names of the gates that compare these queries with rows: AUC of a classifier, those without a near answer.
QUERY_DRIFT, FAR_QUERIES = "query_drift", "far_queries"
# Name of the gate for the files that a searcher opens; earlier versions did not have it.
READABLE = "readable"
# Names of the gates of gates.relevance: its value, and its difference from the previous release.
RELEVANCE, RELEVANCE_CHANGE = "relevance", "relevance_change"
# Names of its further gates, for queries with relevant ids.
RELEVANCE_RECALL, RELEVANCE_MRR = "relevance_recall_at_10", "relevance_mrr_at_10"


class PartLayout(Stored):
    """The number of files that one part of an index has, and the ordinal after its last unit."""

    files: int
    """number of the part's files among the index's `files`"""
    ids: int
    """number of the part's files among the release's `ids`"""
    next_ordinal: int
    """ordinal after the part's last unit; the part's units begin where the previous part's units end"""


class IndexPart(Stored):
    """One part of an index: the rows of consecutive units, in files of its own."""

    files: tuple[FileRef, ...]
    """the index, and its inverted lists if they are on disk"""
    ids: tuple[FileRef, ...]
    next_ordinal: int

    @property
    def rows(self) -> int:
        """Number of rows in the index file, tombstones included."""
        return self.files[0].rows

    @property
    def bytes(self) -> int:
        """Size of the index files."""
        return sum(file.bytes for file in self.files)


class IndexFiles(Stored):
    """The files of an index, how it was built, and the files to measure its recall with."""

    kind: str
    factory: str
    dim: int
    metric: str = "inner_product"
    parts: int = 1
    files: tuple[FileRef, ...]
    """files of all parts, in the order of their units; inverted lists on disk are a second file of a part"""
    layout: tuple[PartLayout, ...] = ()
    """numbers of files, one entry per part; empty in releases of earlier versions, which have a base and at
    most one delta"""
    settings: dict[str, Any] = {}
    """nprobe, nlist, fingerprint of the trained quantizer ..."""
    base_ordinals: int = 0
    """units with an ordinal below this are in the base; later units are in the delta"""
    delta_ids: int = 0
    """how many of the release's `ids`, from the end, belong to the delta; 0 without a delta"""
    trained: FileRef | None = None
    """the trained index without vectors, from which every part was filled"""
    trained_on: dict[str, float | int | None] = {}
    """rows, imbalance and recall_at_10 when the index was trained, for comparison with later nights; and
    rows_effort, the search effort without texts of users"""
    queries: FileRef | None = None
    """addresses and raw vectors of the rows, and of texts of users (address -2), that are searched to measure
    recall"""
    truth: FileRef | None = None
    """exact neighbours of the queries among the live rows"""


class Choice(Stored):
    """One decision of a night and its reason."""

    what: str
    """corpus, encoder, whitening, index ..."""
    chosen: str
    sentence: str
    numbers: dict[str, float | int | None] = {}
    """measurements on which the decision depends, and their thresholds"""


class Gate(Stored):
    """The result of one quality gate. A release is published if all its gates passed."""

    value: float | int | None
    threshold: float | int | None
    passed: bool
    relation: Literal["at least", "at most", "exactly"] = "at least"
    sentence: str = ""


class WhiteningDecision(Stored):
    """The decision about whitening. Later nights keep it until the vectors have drifted."""

    fitted: FileRef | None = None
    """the fitted transform, even if it is not used"""
    fitted_on: FileRef
    """moments of the live rows on the night of the decision"""
    used: bool
    sentence: str


class EncoderFiles(Stored):
    """The release's own copy of its encoder folder."""

    path: str
    files: tuple[FileRef, ...]

    def references(self) -> Iterator[FileRef]:
        """Yield the files with paths relative to the root."""
        for file in self.files:
            yield file.model_copy(update={"path": f"{self.path}/{file.path}"})


class ReleaseManifest(Stored):
    """All files and settings of a release. Paths are relative to the root."""

    schema_version: int = SCHEMA_VERSION
    release: int = 0
    """number of the release; 0 for a candidate"""
    parent: int | None = None
    space_id: str
    transform_id: str | None = None
    transform: FileRef | None = None
    whitening: WhiteningDecision | None = None
    moments: FileRef | None = None
    """moments of the live rows"""
    canary: FileRef | None = None
    """vectors of the canary texts"""
    relevance: FileRef | None = None
    """scores of the queries of gates.relevance, one row each (Parquet)"""
    numerics: dict[str, int]
    rows: int
    units: Units
    """a list, or the reference to a table of many units, which is read when it is used"""
    next_ordinal: int
    dead: FileRef | None = None
    """addresses of rows that the units contain and that are not live (Parquet, column address)"""
    tombstones: FileRef | None = None
    """addresses of the dead rows that the index still contains; null if it contains live rows only"""
    index: IndexFiles
    ids: tuple[FileRef, ...]
    encoder: EncoderFiles
    corpus: FileRef
    gates: dict[str, Gate] = {}
    choices: tuple[Choice, ...] = ()
    counts: dict[str, int] = {}
    settings: dict[str, Any] = {}
    packages: dict[str, str] = {}

    @model_serializer(mode="wrap")
    def _without_missing_relevance(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields without `relevance` if there is none, as in manifests of earlier versions."""
        value: dict[str, Any] = serialize(self)
        if self.relevance is None:
            value.pop("relevance", None)  # a dump may have only some fields
        return value

    @property
    def id(self) -> str:
        """sha256 of the content except the release number; it names a candidate."""
        return digest_of(self.model_dump(mode="json", exclude={"release"}))

    @property
    def row_counts(self) -> RowCounts:
        """Counts of the rows; a good row has a live vector."""
        counts = self.counts
        return RowCounts(
            rows=counts["total"],
            good=self.rows,
            quarantined=counts["quarantined"],
            filtered=counts.get(FILTERED, 0),
        )

    def references(self) -> Iterator[FileRef]:
        """Yield the files that the manifest itself names; for a table of units, only the table's own file."""
        yield from super().references()
        if isinstance(self.units, UnitTable):
            yield self.units.file

    def all_references(self) -> Iterator[FileRef]:
        """Yield the files that the manifest and its units name.

        Raises:
            DataError: the table of units is missing or was changed.
        """
        yield from self.references()
        if isinstance(self.units, UnitTable):
            yield from self.units.references()

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield path and size of the files that `all_references` yields; the size is 0 where it is not
        recorded.

        Raises:
            DataError: the table of units is missing or was changed.
        """
        yield from ((file.path, file.bytes) for file in self.references())
        if isinstance(self.units, UnitTable):
            yield from self.units.sizes()

    def index_parts(self) -> tuple[IndexPart, ...]:
        """Return the parts of the index in the order of their units; the delta's parts come last."""
        index, files, ids = self.index, iter(self.index.files), iter(self.ids)
        return tuple(
            IndexPart(
                files=tuple(islice(files, part.files)),
                ids=tuple(islice(ids, part.ids)),
                next_ordinal=part.next_ordinal,
            )
            for part in index.layout or _early_layout(index, len(self.ids), self.next_ordinal)
        )


def _early_layout(index: IndexFiles, ids: int, next_ordinal: int) -> tuple[PartLayout, ...]:
    """Return the layout of an index of an earlier version: a base and at most one delta."""
    deltas = int(index.parts > 1)
    base = PartLayout(
        files=len(index.files) - deltas, ids=ids - index.delta_ids, next_ordinal=index.base_ordinals
    )
    return (base, PartLayout(files=1, ids=index.delta_ids, next_ordinal=next_ordinal))[: 1 + deltas]


def manifest_path(number: int) -> str:
    """Return the path of the manifest of release `number`."""
    return f"releases/{number:08d}/manifest.json"


def erased_manifest_path(number: int, sha256: str) -> str:
    """Return the path of the manifest that release `number` has after an erasure."""
    return f"releases/{number:08d}/manifest-{sha256[:12]}.json"


def is_erased_manifest(path: str) -> bool:
    """Return whether a file is a manifest that an erasure wrote, by its name."""
    return PurePosixPath(path).match("releases/*/manifest-*.json")


def report_path(number: int) -> str:
    """Return the path of the HTML report of release `number`."""
    return f"releases/{number:08d}/report.html"
