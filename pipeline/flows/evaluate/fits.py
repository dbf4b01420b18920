"""Transforms that are fitted for each task of an evaluation, on the task's sentences or a file of texts."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.evaluate import EvaluationTask
from pipeline.evaluate.source import TEXT_ROLES, TaskFile
from pipeline.flows.evaluate.candidates import ResolvedCandidate
from pipeline.flows.evaluate.sentences import Sentences, SpaceVectors
from pipeline.settings import FitSettings, FlowSettings, WhitenSettings
from pipeline.settings.evaluate import TARGET
from pipeline.settings.training import SourceSettings
from pipeline.stats.moments import Moments
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import load_or_make, store_by_content
from pipeline.text.rows.training_rows import open_training_rows
from pipeline.transforms.chain import fit_transform, name_of
from pipeline.transforms.transform import Transform, load_transform

_VERSION = 1  # version of records and computation; raise it to fit again
_SPLITS = ("train", "dev", "trial", "test")
_WITH_SPLIT = re.compile(rf"(?P<base>.+)-({'|'.join(_SPLITS)})")
_HELD_OUT = 0.05  # proportion of the sentences on which a flow is measured and not trained
_MAX_HELD_OUT = 256


class FittedTransform(Stored):
    """Record of a transform that was fitted for a task."""

    version: int = _VERSION
    transform: FileRef


@dataclass(frozen=True)
class TaskFit:
    """A transform to fit for one task."""

    settings: FitSettings
    """the transform, and the sentences that it is fitted on"""
    sentences: str
    """digest of these sentences"""

    @property
    def id(self) -> str:
        """Digest of the fit; equal fits of one space give equal transforms on machines of one kind."""
        return digest_of([_VERSION, self.settings.model_dump(mode="json"), self.sentences])

    def fitted(self, store: Store, vectors: SpaceVectors, task: EvaluationTask) -> Transform:
        """Load the transform that an earlier run fitted, or else fit and store it.

        Args:
            store: store of the evaluations.
            vectors: raw vectors of the sentences.
            task: the task for which the transform is fitted.

        Raises:
            DataError: the vectors do not allow the fit.
        """
        path = f"fits/{vectors.space_id[:16]}/{self.id[:32]}.json"
        record = load_or_make(store, path, FittedTransform, lambda: self._fit(store, vectors, task))
        return load_transform(record.transform.read(store))

    def facts(self, transform: Transform) -> dict[str, str]:
        """Describe the fitted transform for the results of a task."""
        on = "the task's sentences" if self.settings.on == TARGET else self.settings.on
        rows = f"{transform.fitted_rows:,} sentences"
        return {"transform": f"{name_of(transform)} to {transform.k} components, fitted on {rows} of {on}"}

    def _fit(self, store: Store, vectors: SpaceVectors, task: EvaluationTask) -> FittedTransform:
        assert self.settings.whiten is not None, "the candidate's settings are complete"
        texts = Sentences.of(_texts(self.settings, task)).texts.to_pylist()
        x, unusable = vectors(texts)
        transform = _fit(x[~unusable], self.settings.whiten, vectors.space_id, task.name)
        stem = f"transforms/fit-{vectors.space_id[:16]}"
        file = store_by_content(store, transform.to_bytes(), stem, ".safetensors", transform.fitted_rows)
        return FittedTransform(transform=file)


@dataclass(frozen=True)
class PlannedFits:
    """The fits of an evaluation, and their sentences."""

    by_task: dict[tuple[tuple[str, str | None], str], TaskFit]
    """fits by the id of the candidate and the name of the task"""
    texts: dict[str, list[str]]
    """sentences of these fits, by the space in which their vectors are needed"""


def plan_fits(candidates: Iterable[ResolvedCandidate], tasks: Sequence[EvaluationTask]) -> PlannedFits:
    """Read the sentences that the candidates' transforms are fitted on.

    Raises:
        DataError: a file beside a task's file, or a file of texts, cannot be read.
    """
    by_task, texts = dict[tuple[tuple[str, str | None], str], TaskFit](), dict[str, list[str]]()
    for candidate in candidates:
        if candidate.fit is None:
            continue
        for task in tasks:
            own = _texts(candidate.fit, task)
            digest = sha256("\0".join(sorted(set(own))).encode()).hexdigest()
            by_task[candidate.id, task.name] = TaskFit(candidate.fit, digest)
            texts.setdefault(candidate.space_id, []).extend(own)
    return PlannedFits(by_task, texts)


def _texts(fit: FitSettings, task: EvaluationTask) -> list[str]:
    """Return the sentences that a transform is fitted on for a task, maybe repeated."""
    if fit.on == TARGET:
        return target_texts(task)
    rows = open_training_rows(SourceSettings(uri=fit.on), ("text",), ())
    return [text or " " for table in rows.read(rows.spans(), ["text"]) for text in table["text"].to_pylist()]


def target_texts(task: EvaluationTask) -> list[str]:
    """Return the sentences of all columns and splits of a task, without scores and labels.

    Splits are the values of the column `split`, and the files beside the task's file whose names differ only
    in -train, -dev, -trial or -test at the end (Li et al. 2020, BERT-flow; Su et al. 2021).

    Raises:
        DataError: the file of another split has other columns.
    """
    columns = tuple((role, column) for role, column in task.file.columns if role in TEXT_ROLES)
    texts: list[str] = []
    for file in (task.file, *_other_splits(task.file)):
        rows = replace(file, columns=columns, split=None).rows()
        texts += [text for role, _ in columns for text in rows.texts(role)]
    return texts


def _other_splits(file: TaskFile) -> Iterator[TaskFile]:
    """Yield the files of the other splits that are beside a task's file."""
    folder, _, name = file.path.removesuffix(".parquet").rpartition("/")
    match = _WITH_SPLIT.fullmatch(name)
    base = match["base"] if match else name
    for split in _SPLITS:
        path = f"{folder}/{base}-{split}.parquet".removeprefix("/")
        if path != file.path and file.store.exists(path):
            yield file.beside(path)


def _fit(x: np.ndarray, settings: WhitenSettings, space_id: str, task: str) -> Transform:
    """Fit a transform on the vectors x (n, d) of different sentences."""
    if len(x) < 2:
        raise DataError(
            f"fit of {settings.transform} for {task}",
            "at least two different sentences with a vector",
            f"{len(x)}",
            "use a larger task, or fit on a file of texts",
        )
    return fit_transform(Moments.of(x), settings, space_id, partial(_train_flow, x, settings.flow))


def _train_flow(
    x: np.ndarray, settings: FlowSettings, name: str, before: Transform | None, space_id: str
) -> Transform:
    """Train a flow, the last step of a chain, on x (n, d) after the steps in `before`, in one thread."""
    import torch

    from pipeline.models.layers.numerics import use_threads
    from pipeline.train.bert_flow import FlowTrainer, HeldOut

    inputs = x if before is None else before(x)
    order = np.random.default_rng(settings.seed).permutation(len(inputs))
    held_count = min(_MAX_HELD_OUT, max(1, int(_HELD_OUT * len(inputs))))
    held_out, rows = HeldOut(inputs[order[:held_count]]), order[held_count:]
    trainer = FlowTrainer(inputs.shape[1], settings, torch.device("cpu"))
    with use_threads(1):
        trainer.initialize(inputs[rows[: settings.batch_rows]], held_out)
        for batch in _batches(rows, settings):
            trainer.train_step(inputs[batch])
        trainer.evaluate(held_out)
    return trainer.to_flow(held_out, len(rows), space_id)


def _batches(rows: np.ndarray, settings: FlowSettings) -> Iterator[np.ndarray]:
    """Yield the rows of each step, in a new random order in each epoch."""
    per_epoch = max(1, len(rows) // settings.batch_rows)
    batches: list[np.ndarray] = []
    for step in range(max(1, round(settings.epochs * per_epoch))):
        if not batches:
            rng = np.random.default_rng([settings.seed, step])
            batches = np.array_split(rng.permutation(rows), per_epoch)
        yield batches.pop()
