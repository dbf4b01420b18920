"""The points of a night at which faults can be injected: every kind of file that it writes to the store."""

import re
from dataclasses import asdict, dataclass
from typing import Any

_HEX = r"[0-9a-f]+"
_KEYS = rf"keys/{_HEX}"
_WORK = rf"indexes/work/{_HEX}(/delta-[0-9]+)?"
_UNIT = rf"{_HEX}/{_HEX}(-[a-z0-9]+)*"

# In the order in which a night writes them. Of several patterns that match a path, the first counts.
POINTS: dict[str, str] = {
    "lease": r"candidates/lease-.*",
    "probe": r"candidates/probe-.*",
    "corpus unit": r"units/corpus/.*\.parquet",
    "ingestion": rf"{_KEYS}/work/.*",
    "key table": rf"{_KEYS}/[0-9]+(-delta)?\.parquet",
    "text table": rf"{_KEYS}/texts-[0-9]+(-delta)?\.parquet",
    "copies": rf"{_KEYS}/copies-.*\.parquet",
    "dead rows": rf"{_KEYS}/dead.*",
    "quarantine": r"quarantine/.*",
    "corpus record": rf"{_KEYS}/corpus\.json",
    "encoder": r"encoders/.*",
    "attempt": r"units/vectors/.*\.attempts/.*",
    "data": rf"units/vectors/{_UNIT}\.parquet",
    "moments": rf"moments/{_HEX}/{_HEX}-{_HEX}\.safetensors",
    "record": rf"units/vectors/{_UNIT}\.json",
    "merged moments": r"moments/.*merged-.*",
    "transform": r"transforms/.*",
    "trained": r"indexes/trained-.*",
    "queries": r"indexes/queries-.*",
    "training record": rf"{_WORK}/trained\.json",
    "index part": rf"{_WORK}/shard-.*\.faiss",
    "neighbours": rf"({_WORK}/shard-.*\.safetensors|indexes/truth-.*)",
    "ids": r"ids/.*\.arrow",
    "part record": rf"{_WORK}/shard-[0-9]+\.json",
    "survey": rf"{_WORK}/(survey|gone|tombstones).*",
    "merged part record": rf"{_WORK}/part-[0-9]+\.json",
    "grown record": rf"{_WORK}/grown-[0-9]+\.json",
    "index file": rf"indexes/{_HEX}\.(faiss|ivfdata)",
    "index record": rf"{_WORK}/(built|extended)\.json",
    "canary": r"moments/canary-.*",
    "manifest": r"releases/[0-9]+/manifest\.json",
    "report": r"releases/[0-9]+/report\.html",
    "commit": r"commits/[0-9]+\.json",
    "changed rows": r"candidates/changes/.*\.json",
    "summary": r"releases/[0-9]+/summary\.json",
    "overview": r"index\.html",
}
# Files that a crash may leave truncated and that the same night writes again. A commit or a manifest is
# truncated only on a store without hard links.
TORN = (
    "corpus unit",
    "key table",
    "text table",
    "dead rows",
    "copies",
    "corpus record",
    "encoder",
    "data",
    "moments",
    "record",
    "merged moments",
    "trained",
    "queries",
    "training record",
    "index part",
    "neighbours",
    "ids",
    "part record",
    "merged part record",
    "grown record",
    "index file",
    "index record",
    "manifest",
    "commit",
)
_PATTERNS = {name: re.compile(pattern) for name, pattern in POINTS.items()}


def point_of(path: str) -> str | None:
    """Return the point of a file in the store, by its path; None if no point has this file."""
    return next((name for name, pattern in _PATTERNS.items() if pattern.fullmatch(path)), None)


@dataclass(frozen=True)
class Shot:
    """A fault that happens once, at a point.

    Attributes:
        point: the kind of file.
        when: before or after the file is written.
        act: kill (SIGKILL of the writing process), cut (the file is truncated to its first half), torn (cut,
            then kill), gone (the file is deleted), full (the disk is full), ill (an I/O error) or stale (a
            stale file handle).
        skip: number of files of the kind that are written without a fault first.
    """

    point: str
    when: str
    act: str
    skip: int = 0

    def facts(self) -> dict[str, Any]:
        return asdict(self)
