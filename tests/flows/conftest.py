"""A corpus of made-up sentences, jobs over it, and jobs in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.index.build.index_shape import GIB
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases

ROOT = Path(__file__).parent.parent.parent
ON_RAY = "cluster.small_rows=0"  # even a small night starts Ray
ANY_CORPUS = (
    "gates.max_deleted=",
    "gates.max_empty_texts=",
    "gates.max_shorter_texts=",
    "gates.max_repeated_texts=",
)
"""Settings of nights over corpora that may lose most of their rows and texts from one night to the next."""
_JOB_TIMEOUT_S = 300.0
WORDS = (
    *(
        "a",
        "the",
        "man",
        "woman",
        "dog",
        "girl",
        "boy",
        "reads",
        "runs",
        "stands",
        "cleans",
        "sleeps",
        "jumps",
        "grass",
        "window",
        "river",
        "bank",
        "ladder",
    ),
    *("book", "shirt", "blue", "quick", "brown", "lazy", "old", "near", "over", "on", "in", "and"),
)


def part_size(rows: int) -> str:
    """Return the setting for parts of `rows` rows of a flat index of the fixture `encoder`."""
    row_bytes = 48 * 4 + 8  # 48 float32 values and an address
    return f"index.part_gib={(rows + 0.5) * row_bytes / GIB:.12f}"


def sentences(count: int, seed: int = 0) -> list[str]:
    """Return distinct sentences of 8 to 16 words."""
    rng = np.random.default_rng(seed)
    return [" ".join([*rng.choice(WORDS, rng.integers(7, 16)), str(number)]) for number in range(count)]


def write_corpus(folder: Path, count: int = 400, files: int = 3, seed: int = 0) -> Path:
    """Write Parquet files of rows (id, text, lang). Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(count), files)):
        texts = sentences(count, seed)
        table = pa.table(
            {
                "id": [f"row-{row:05d}" for row in rows],
                "text": [texts[row] for row in rows],
                "lang": ["en"] * len(rows),
            }
        )
        pq.write_table(table, folder / f"part-{number}.parquet")
    return folder


@pytest.fixture
def make_job(tmp_path: Path, encoder: Path) -> Callable[..., Job]:
    """Make a job over a corpus of 400 rows in units of 50, with the overrides of the test."""
    write_corpus(tmp_path / "corpus")

    def make(*overrides: str) -> Job:
        return load_settings(Job, None, tuple(job_arguments(tmp_path, encoder)) + overrides)

    return make


def job_arguments(folder: Path, encoder: Path) -> list[str]:
    """Return the overrides of the job, as on the command line."""
    return [
        f"corpus.uri={folder / 'corpus'}",
        "corpus.keep=[text, lang]",
        f"encoder.path={encoder}",
        "encode.unit_rows=50",
        "index.queries=60",
        "index.shards=2",
        "whiten.dev_texts=50",
        f"release.root={folder / 'releases'}",
    ]


StartJob = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_job() -> Iterator[StartJob]:
    """Start a job by the name of its module, in a process of its own; kill it after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(
        name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"jobs.{name}", "--json", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment or {**os.environ, "MANTA_LOG": "json"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            kill_job(process)


def finish_job(process: subprocess.Popen[str], code: int = 0) -> tuple[dict[str, Any], str]:
    """Wait for the end of a job and check its exit code. Returns its JSON and its standard error."""
    out, errors = process.communicate(timeout=_JOB_TIMEOUT_S)
    assert process.returncode == code, errors[-3000:]
    return dict(json.loads(out)), errors


def kill_job(process: subprocess.Popen[str]) -> str:
    """Kill a job with SIGKILL. Returns its standard error."""
    process.send_signal(signal.SIGKILL)
    return process.communicate()[1]


def current_manifest(root: Path) -> ReleaseManifest:
    """Load the manifest of the current release of a root."""
    manifest = Releases(open_store(root)).current()
    assert manifest is not None
    return manifest


def encoded_units(root: Path) -> dict[str, int]:
    """List the records of finished embedding units, with their modification times in nanoseconds."""
    return {path.name: path.stat().st_mtime_ns for path in root.glob("units/vectors/*/*.json")}


def unit_hashes(root: Path, *, after_a_kill: bool = False) -> dict[str, str]:
    """Hash every file below units/ with SHA-256.

    A process that was killed leaves two things to prune, which no reader lists: incomplete files,
    and the mark of the attempt it was killed in. With `after_a_kill` both are left out.
    """
    if after_a_kill:
        open_store(root).sweep(time.time() + 60)
    return {
        path.relative_to(root).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in (root / "units").rglob("*")
        if path.is_file() and not (after_a_kill and path.parent.name.endswith(".attempts"))
    }


@pytest.fixture
def shuffle_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register an augmentation for one test, so that others see only the methods of the product."""
    from pipeline.augment import AUGMENTERS
    from tests.flows.augment.augmenting import Shuffles

    monkeypatch.setitem(AUGMENTERS._entries, "test_shuffles", Shuffles)
