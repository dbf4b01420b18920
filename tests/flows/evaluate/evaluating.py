"""Small tasks on disk, and their scores by numpy and scipy, for the tests of `manta evaluate`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.stats import spearmanr

from pipeline.config import load_settings
from pipeline.flows.evaluate.scoring import ResampledResult, Result
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from tests.flows.conftest import sentences


def write_pairs(file: Path, count: int, seed: int = 0, texts: list[str] | None = None) -> Path:
    """Write an STS file of `count` pairs in two subsets, from 3/2 `count` sentences, so that some repeat."""
    rng = np.random.default_rng(seed)
    texts = texts or sentences(3 * count // 2, seed)
    first = rng.integers(0, len(texts), count)
    # No text is paired with itself: the rank of a cosine that is 1 but for rounding is arbitrary.
    second = (first + rng.integers(1, len(texts), count)) % len(texts)
    left, right = ([texts[index] for index in indices] for indices in (first, second))
    subsets = ["first" if pair < count // 2 else "second" for pair in range(count)]
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table(
            {"subset": subsets, "sentence1": left, "sentence2": right, "score": rng.uniform(0, 5, count)}
        ),
        file,
    )
    return file


def sts_result(**values: Any) -> ResampledResult:
    """Return the result of an STS task without draws, with these values of `Result`."""
    usual = {"kind": "sts", "task_digest": "", "space_id": "", "transform_id": None, "numerics": {}}
    return ResampledResult(Result.model_validate(usual | values), None)


def distinct(*files: Path) -> int:
    """Count the distinct sentences of these files, as the encoder receives them."""
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


def oracle(file: Path, encoder: EncoderSettings, transform: Any = None) -> float:
    """Compute Spearman x100 of cosines with the encoder, numpy and scipy alone."""
    table = pq.read_table(file)
    texts = [
        [(text or "").strip() or " " for text in table[name].to_pylist()]
        for name in ("sentence1", "sentence2")
    ]
    vectors = [load_encoder(encoder, EncodeSettings(), "cpu").encode(side) for side in texts]
    left, right = ((transform(side) if transform else side).astype(np.float64) for side in vectors)
    cosines = np.sum(left * right, axis=1) / (np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1))
    return 100 * float(spearmanr(cosines, table["score"].to_numpy()).statistic)


def vector_rows(folder: Path, space_id: str) -> int:
    """Count the rows of all units with a record. A killed run may leave a file without one."""
    records = folder.glob(f"root/evaluations/units/vectors/{space_id[:16]}/*.json")
    return sum(json.loads(record.read_bytes())["rows"] for record in records)
