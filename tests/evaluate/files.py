"""Task files on disk, vectors that are looked up, and the same vectors for the evaluators of sentence-transformers."""

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

from pipeline.evaluate import TASKS, Task
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.store import open_store


def save(file: Path, columns: Mapping[str, Any]) -> Path:
    """A Parquet file of these columns."""
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


def task_of(kind: str, file: Path, settings: EvaluateSettings | None = None, **source: Any) -> Task:
    """The task over that file."""
    return TASKS[kind].of(
        TaskSettings(kind=kind, uri=str(file), **source),
        open_store(file.parent),
        file.name,
        settings or EvaluateSettings(),
    )


def looked_up(table: Mapping[str, Sequence[float]]) -> Callable[[Sequence[str]], np.ndarray]:
    """Vectors by text."""
    return lambda sentences: np.array([table[sentence] for sentence in sentences], np.float32)


def drawn(dim: int = 8, seed: int = 0) -> Callable[[Sequence[str]], np.ndarray]:
    """A random vector for every distinct text, the same at every call."""
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
    """What an evaluator of sentence-transformers asks of a model, over the same vectors."""

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
    """The evaluators of the installed sentence-transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("sentence_transformers.evaluation")
