"""Task files, look-up vectors, and the same vectors for the evaluators of sentence-transformers."""

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from pipeline.evaluate import TASKS, EvaluationTask, Score
from pipeline.evaluate.bootstrap import ScoreEstimate, estimate, statistics
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.files.open_store import open_store


def save(file: Path, columns: Mapping[str, Any]) -> Path:
    """Write a Parquet file with these columns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table(
            {
                name: values if isinstance(values, pa.Array) else pa.array(values)
                for name, values in columns.items()
            }
        ),
        file,
    )
    return file


def task_of(kind: str, file: Path, settings: EvaluateSettings | None = None, **source: Any) -> EvaluationTask:
    """Open the task of a file."""
    return TASKS[kind].of(
        TaskSettings(kind=kind, uri=str(file), **source),
        open_store(file.parent),
        file.name,
        settings or EvaluateSettings(),
    )


def looked_up(table: Mapping[str, Sequence[float]]) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function that looks vectors up by text."""
    return lambda sentences: np.array([table[sentence] for sentence in sentences], np.float32)


def random_vectors(dim: int = 8, seed: int = 0) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function with a fixed random vector per distinct text."""
    known: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(seed)

    def vectors(sentences: Sequence[str]) -> np.ndarray:
        for sentence in sentences:
            if sentence not in known:
                known[sentence] = rng.normal(size=dim).astype(np.float32)
        return np.stack([known[sentence] for sentence in sentences])

    return vectors


@dataclass
class Peer:
    """Model interface of sentence-transformers over the same vectors."""

    vectors: Callable[[Sequence[str]], np.ndarray]
    similarity_fn_name: str = "cosine"
    model_card_data: Any = None

    def __post_init__(self) -> None:
        self.model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *_: None)

    def encode(self, sentences: Sequence[str], *, convert_to_numpy: bool = True, **_: Any) -> Any:
        found = self.vectors(list(sentences))
        return found if convert_to_numpy else torch.from_numpy(found)

    encode_query = encode_document = encode

    def similarity(self, left: Any, right: Any) -> torch.Tensor:
        left, right = (torch.nn.functional.normalize(torch.as_tensor(each), dim=-1) for each in (left, right))
        return left @ right.T


def peer_evaluators() -> ModuleType:
    """Return the evaluators of the installed sentence-transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("sentence_transformers.evaluation")


def value_interval(task: EvaluationTask, score: Score, resamples: int, seed: int) -> ScoreEstimate:
    """Bootstrap interval of one candidate's value."""
    return estimate(score.value, statistics(task, score.evidence, resamples, seed))


def difference_interval(
    task: EvaluationTask, first: Score, second: Score, resamples: int, seed: int
) -> ScoreEstimate:
    """Bootstrap interval of second - first on the same resamples."""
    values = [statistics(task, score.evidence, resamples, seed) for score in (first, second)]
    return estimate(second.value - first.value, values[1] - values[0])
