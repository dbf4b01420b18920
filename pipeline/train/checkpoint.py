"""Checkpoints of a training in a store: written in the background; the last and the best ones are kept.

A checkpoint is a file, named by its content, and a record with the file's sha256, which is written last. A
file without a record does not count, so a training that is killed while it writes continues from the previous
checkpoint.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from pipeline.errors import DataError
from pipeline.log import say
from pipeline.settings.training import CheckpointSettings
from pipeline.store.base import Store, sha256_of
from pipeline.store.units import Stored
from pipeline.train.gather import Ranks, world_size

_ABANDONED_S = 3_600.0  # after its last write; by then no process is about to write its record


class CheckpointRecord(Stored):
    """Record of one checkpoint."""

    step: int
    path: str
    bytes: int
    sha256: str
    figure: float | None = None
    """score on dev at that step; higher is better"""

    @property
    def name(self) -> str:
        """Path of the record's own file."""
        return f"{self.path.removesuffix('.pt')}.json"


@dataclass(frozen=True)
class TrainingCheckpoint:
    """Complete checkpoint with a local copy of its file."""

    record: CheckpointRecord
    path: Path

    @property
    def step(self) -> int:
        return self.record.step

    @property
    def figure(self) -> float | None:
        return self.record.figure

    def load(self) -> dict[str, Any]:
        """Load the saved state: tensors and plain values only, without running code from the file."""
        state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        return state


class Checkpoints:
    """Checkpoints below the folder `top` of a store.

    The first rank writes. `due`, `last` and `best` return the same on all ranks, and every rank has to call
    them.
    """

    def __init__(self, store: Store, top: str, settings: CheckpointSettings) -> None:
        self._store, self._top, self._settings = store, top, settings
        self._writer = ThreadPoolExecutor(1, "manta-checkpoint")
        self._written: Future[None] | None = None
        self._saved_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def due(self, step: int) -> bool:
        """Return True if a checkpoint is due after this step, by its number or the first rank's clock."""
        settings = self._settings
        if settings.steps is not None and step % settings.steps == 0:
            return True
        return settings.minutes is not None and _from_first_rank(
            time.monotonic() - self._saved_at > 60 * settings.minutes
        )

    def save(self, step: int, state: dict[str, Any], figure: float | None = None) -> None:
        """Write the state in a thread; the caller must not modify it any more.

        Waits for the previous write, and raises its error.

        Args:
            step: number of the last step.
            state: tensors and plain values.
            figure: score on dev, higher is better.
        """
        self._saved_at = time.monotonic()
        if Ranks().rank:
            return
        self._wait()
        self._written = self._writer.submit(self._write, step, state, figure)

    def last(self) -> TrainingCheckpoint | None:
        """Return the complete checkpoint of the highest step; incomplete ones are logged and skipped."""
        return self._chosen(lambda record: (record.step, record.name))

    def best(self) -> TrainingCheckpoint | None:
        """Return the complete checkpoint with the best score on dev, the earliest of equals.

        None without scores.
        """
        return self._chosen(_by_score)

    def close(self) -> None:
        """Wait for the running write, and raise its error."""
        try:
            self._wait()
        finally:
            self._writer.shutdown()

    def _wait(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _chosen(self, rank_of: Callable[[CheckpointRecord], Any]) -> TrainingCheckpoint | None:
        """Return the complete checkpoint of the highest rank, as found by the first rank."""
        self._wait()
        found = self._highest(rank_of) if Ranks().rank == 0 else None
        record: CheckpointRecord | None = _from_first_rank(found.record if found else None)
        if found or record is None:
            return found
        return TrainingCheckpoint(record, self._store.local(record.path, record.sha256))

    def _highest(self, rank_of: Callable[[CheckpointRecord], Any]) -> TrainingCheckpoint | None:
        ranked = [record for record in self._records() if rank_of(record) is not None]
        complete = (self._open(record) for record in sorted(ranked, key=rank_of, reverse=True))
        return next((checkpoint for checkpoint in complete if checkpoint), None)

    def _records(self) -> list[CheckpointRecord]:
        """Read all valid records."""
        read = (self._record(entry.path) for entry in self._store.list(self._top, ".json"))
        return [record for record in read if record]

    def _record(self, path: str) -> CheckpointRecord | None:
        try:
            return CheckpointRecord.load(self._store, path)
        except DataError as error:
            say(f"a checkpoint is skipped: {error}")
            return None

    def _open(self, record: CheckpointRecord) -> TrainingCheckpoint | None:
        try:
            return TrainingCheckpoint(record, self._store.local(record.path, record.sha256))
        except FileNotFoundError:
            say(f"a checkpoint is skipped: {self._store.uri_of(record.path)} is missing")
        except DataError as error:
            say(f"a checkpoint is skipped: {error}")
        return None

    def _write(self, step: int, state: dict[str, Any], figure: float | None) -> None:
        with self._store.scratch() as folder:
            path = folder / "checkpoint.pt"
            torch.save(state, path)
            digest, size = sha256_of(path), path.stat().st_size
            record = CheckpointRecord(
                step=step,
                path=f"{self._top}/step-{step:08d}-{digest[:12]}.pt",
                bytes=size,
                sha256=digest,
                figure=figure,
            )
            self._store.put(path, record.path)
        self._store.write(record.name, record.to_json())
        self._prune(record)

    def _prune(self, written: CheckpointRecord) -> None:
        """Delete checkpoints that are neither among the last nor among the best ones.

        Steps after the one just written may belong to another process, and stay.
        """
        records = self._records()
        past = [written, *(record for record in records if record.step < written.step)]
        latest = sorted(past, key=lambda record: record.step)[-self._settings.keep :]
        scored = sorted((record for record in past if record.figure is not None), key=_by_score)
        best = scored[-self._settings.keep_best :]
        kept = {written.name} | {record.name for record in (*latest, *best)}
        for record in records:
            if record.step <= written.step and record.name not in kept:
                self._store.delete(record.name)
                self._store.delete(record.path)
        self._sweep(records)

    def _sweep(self, records: list[CheckpointRecord]) -> None:
        """Delete files whose writer was killed before it could write their record."""
        known, before = {record.path for record in records}, time.time() - _ABANDONED_S
        for entry in self._store.list(self._top, ".pt"):
            if entry.path not in known and entry.modified < before:
                self._store.delete(entry.path)


def _by_score(record: CheckpointRecord) -> Any:
    """Sort key: the highest score last, the earliest of equals after later ones; None without a score."""
    return None if record.figure is None else (record.figure, -record.step)


def _from_first_rank(value: Any) -> Any:
    """Broadcast the first rank's value to every rank."""
    values = [value]
    if world_size() > 1:
        dist.broadcast_object_list(values, src=0)
    return values[0]
