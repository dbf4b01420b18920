"""Small tasks on disk for the tests of `manta evaluate`."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.settings import Job
from tests.flows.conftest import sentences


def write_pairs(file: Path, count: int, seed: int = 0, texts: list[str] | None = None) -> Path:
    """Write an STS file of `count` pairs in two subsets, of 3/2 `count` sentences, so that some repeat."""
    rng = np.random.default_rng(seed)
    texts = texts or sentences(3 * count // 2, seed)
    one = rng.integers(0, len(texts), count)
    other = (one + rng.integers(1, len(texts), count)) % len(
        texts
    )  # never with itself: what would be 1 but for rounding has no rank
    left, right = ([texts[place] for place in places] for places in (one, other))
    subsets = ["first" if place < count // 2 else "second" for place in range(count)]
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table(
            {"subset": subsets, "sentence1": left, "sentence2": right, "score": rng.uniform(0, 5, count)}
        ),
        file,
    )
    return file


def distinct(*files: Path) -> int:
    """Return the distinct sentences of these files, as the encoder gets them."""
    tables = [pq.read_table(file) for file in files]
    return len(
        {
            (text or "").strip() or " "
            for table in tables
            for name in ("sentence1", "sentence2")
            for text in table[name].to_pylist()
        }
    )


def job(folder: Path, encoder: Path, *overrides: str) -> Job:
    """Return a job that evaluates on the tasks in `folder`/tasks and stores its results in `folder`/root."""
    return load_settings(Job, None, tuple(arguments(folder, encoder)) + overrides)


def arguments(folder: Path, encoder: Path) -> list[str]:
    """Return the same job as command line overrides."""
    return [
        f"encoder.path={encoder}",
        f"evaluate.tasks={folder / 'tasks'}",
        f"release.root={folder / 'root'}",
        "evaluate.bootstrap=50",
    ]
