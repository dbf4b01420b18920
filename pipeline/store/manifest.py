"""The manifest of a release: references, with digests, to all files that readers and the next night need."""

from collections.abc import Iterator
from typing import Any, Literal

from pipeline.config import digest_of
from pipeline.store.stored import SCHEMA_VERSION, FileRef, Stored

# The gate that reports the recall on gates.queries; it never refuses a release.
OUTSIDE_RECALL = "recall_at_10_queries"


class ReleaseUnit(Stored):
    """One unit of vectors in a release."""

    ordinal: int
    path: str
    rows: int
    """dead rows included"""
    bytes: int = 0
    sha256: str
    space_id: str
    numerics_id: str
    copied: dict[str, int] = {}
    """rows copied from units encoded with other numerics: numerics_id -> count"""
    corpus: FileRef
    """the corpus unit, which holds the texts"""
    dropped: tuple[int, ...] = ()
    """rows of the corpus unit without a vector"""
    moments: FileRef | None = None
    record: str
    """path of the unit's record"""
    quarantine: FileRef | None = None
    """rows whose vector was unusable"""

    @property
    def file(self) -> FileRef:
        """The file with the unit's rows."""
        return FileRef(path=self.path, sha256=self.sha256, rows=self.rows, bytes=self.bytes)

    def references(self) -> Iterator[FileRef]:
        """Yield the unit's files. The reference to its record has neither size nor sha256."""
        yield from (self.file, FileRef(path=self.record, sha256=""))
        yield from super().references()


class IndexFiles(Stored):
    """The files of an index, how it was built, and what its recall is measured with."""

    kind: str
    factory: str
    dim: int
    metric: str = "inner_product"
    parts: int = 1
    files: tuple[FileRef, ...]
    settings: dict[str, Any] = {}
    """nprobe, nlist, fingerprint of the trained quantizer ..."""
    base_ordinals: int = 0
    """units with an ordinal below this are in the first part, later units in the second"""
    delta_ids: int = 0
    """how many files at the end of the release's `ids` belong to the second part"""
    trained: FileRef | None = None
    """the trained index without vectors, which every part starts from"""
    trained_on: dict[str, float | int | None] = {}
    """rows, imbalance and recall_at_10 at training, the reference for later nights"""
    queries: FileRef | None = None
    """addresses and raw vectors of the rows that recall is measured with"""
    truth: FileRef | None = None
    """exact neighbours of the queries among the live rows"""


class Choice(Stored):
    """One decision of a night and its reason."""

    what: str
    """corpus, encoder, whitening, index ..."""
    chosen: str
    sentence: str
    numbers: dict[str, float | int | None] = {}
    """measurements that the decision depends on, and their thresholds"""


class Gate(Stored):
    """The result of one quality gate. A release is published if all its gates passed."""

    value: float | int | None
    threshold: float | int | None
    passed: bool
    relation: Literal["at least", "at most", "exactly"] = "at least"
    sentence: str = ""


class Whitened(Stored):
    """The decision about whitening. Later nights keep it until the vectors have drifted."""

    fitted: FileRef | None = None
    """the transform, whether it is used or not"""
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
    whitening: Whitened | None = None
    moments: FileRef | None = None
    """moments of the live rows"""
    canary: FileRef | None = None
    """vectors of the canary texts"""
    numerics: dict[str, int]
    rows: int
    units: tuple[ReleaseUnit, ...]
    next_ordinal: int
    dead: FileRef | None = None
    """addresses of rows that the units hold and that are not live (Parquet, column address)"""
    tombstones: FileRef | None = None
    """addresses of the dead rows that the index still holds; null if it holds live rows only"""
    index: IndexFiles
    ids: tuple[FileRef, ...]
    encoder: EncoderFiles
    corpus: FileRef
    gates: dict[str, Gate] = {}
    choices: tuple[Choice, ...] = ()
    counts: dict[str, int] = {}
    settings: dict[str, Any] = {}
    packages: dict[str, str] = {}

    @property
    def id(self) -> str:
        """sha256 of the content except the release number; it names a candidate."""
        return digest_of(self.model_dump(mode="json", exclude={"release"}))


def manifest_path(number: int) -> str:
    """Return the path of the manifest of release `number`."""
    return f"releases/{number:08d}/manifest.json"


def report_path(number: int) -> str:
    """Return the path of the HTML report of release `number`."""
    return f"releases/{number:08d}/report.html"
