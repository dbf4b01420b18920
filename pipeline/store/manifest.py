"""The manifest of a release: everything that a reader or the next night needs, by content."""

from collections.abc import Iterator
from typing import Any, Literal

from pipeline.config import digest_of
from pipeline.store.units import SCHEMA_VERSION, FileRef, Stored

OUTSIDE_RECALL = "recall_at_10_queries"  # the gate that reports gates.queries and refuses nothing


class ReleaseUnit(Stored):
    """One unit of vectors in a release. Its rows' addresses are ordinal << 32 | row of the corpus unit; rows are counted with the dead ones."""

    ordinal: int
    path: str
    rows: int
    bytes: int = 0
    sha256: str
    space_id: str
    numerics_id: str
    copied: dict[str, int] = {}
    """of the rows, those copied from units of another arithmetic, by its numerics_id"""
    corpus: FileRef
    """the unit's texts"""
    dropped: tuple[int, ...] = ()
    """rows of the corpus unit without a vector"""
    moments: FileRef | None = None
    record: str
    """path of the unit's record"""
    quarantine: FileRef | None = None
    """rows whose vector was unusable"""


class IndexFiles(Stored):
    kind: str
    factory: str
    dim: int
    metric: str = "inner_product"
    parts: int = 1
    files: tuple[FileRef, ...]
    settings: dict[str, Any] = {}
    """nprobe, nlist, fingerprint of the trained quantizer ..."""
    base_ordinals: int = 0
    """rows of units with an ordinal below this lie in the first part, those of later units in the second"""
    delta_ids: int = 0
    """how many of the release's files of ids, the last ones, are of the second part"""
    trained: FileRef | None = None
    """the empty index that every part was filled from"""
    trained_on: dict[str, float | int | None] = {}
    """rows, imbalance and recall_at_10 when it was trained: what later nights are compared with"""
    queries: FileRef | None = None
    """rows that recall is measured with: addresses and raw vectors"""
    truth: FileRef | None = None
    """their exact neighbours among the live rows"""


class Choice(Stored):
    """One thing that a night decided, and why. what: corpus, encoder, whitening, index ...; numbers: what it was decided by, bounds included."""

    what: str
    chosen: str
    sentence: str
    numbers: dict[str, float | int | None] = {}


class Gate(Stored):
    value: float | int | None
    threshold: float | int | None
    passed: bool
    relation: Literal["at least", "at most", "exactly"] = "at least"
    sentence: str = ""


class Whitened(Stored):
    """What was decided about whitening, and on what: later nights keep it until the vectors have drifted from those."""

    fitted: FileRef | None = None
    """the transform, used or not"""
    fitted_on: FileRef
    """moments of the live rows of that night"""
    used: bool
    sentence: str


class EncoderFiles(Stored):
    """The release's own copy of its encoder folder."""

    path: str
    files: tuple[FileRef, ...]


class ReleaseManifest(Stored):
    """Everything a reader or the next night needs, by content. All paths are relative to the root."""

    schema_version: int = SCHEMA_VERSION
    release: int = 0
    """0 while it is a candidate"""
    parent: int | None = None
    space_id: str
    transform_id: str | None = None
    transform: FileRef | None = None
    whitening: Whitened | None = None
    moments: FileRef | None = None
    """of the live rows"""
    canary: FileRef | None = None
    """vectors of the canary texts"""
    numerics: dict[str, int]
    rows: int
    units: tuple[ReleaseUnit, ...]
    next_ordinal: int
    dead: FileRef | None = None
    """rows that the units hold and that are not live (Parquet, column address)"""
    tombstones: FileRef | None = None
    """those of them that the index still holds; null where it holds live rows only"""
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
        """sha256 of the content but for its number: what a candidate is named by."""
        return digest_of(self.model_dump(mode="json", exclude={"release"}))

    def files(self) -> Iterator[FileRef]:
        """Every file that this release needs, except its own manifest and the files that its corpus record names.

        Records of units come without size and sha256.
        """
        fitted = (self.whitening.fitted, self.whitening.fitted_on) if self.whitening else ()
        index = (self.index.trained, self.index.queries, self.index.truth)
        single = (
            self.transform,
            self.moments,
            self.canary,
            self.dead,
            self.tombstones,
            self.corpus,
            *fitted,
            *index,
        )
        yield from (reference for reference in single if reference)
        yield from (*self.index.files, *self.ids, *self.encoder_files())
        for unit in self.units:
            yield FileRef(path=unit.path, sha256=unit.sha256, rows=unit.rows, bytes=unit.bytes)
            yield FileRef(path=unit.record, sha256="")
            yield from (reference for reference in (unit.corpus, unit.moments, unit.quarantine) if reference)

    def encoder_files(self) -> tuple[FileRef, ...]:
        """The encoder's files, by their paths below the root."""
        return tuple(
            file.model_copy(update={"path": f"{self.encoder.path}/{file.path}"})
            for file in self.encoder.files
        )

    def paths(self) -> set[str]:
        """Paths of `files`."""
        return {file.path for file in self.files()}


def manifest_path(number: int) -> str:
    return f"releases/{number:08d}/manifest.json"
