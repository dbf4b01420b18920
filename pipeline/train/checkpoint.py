"""Checkpoints of a training in a store: written in the background; the last and the best ones are kept.

A checkpoint is a file, named by its content, and a record with the file's sha256, which is written last. A
file without a record does not count, so a training that is killed while it writes continues from the previous
checkpoint.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.errors import DataError
from pipeline.log import say
from pipeline.settings.training import CheckpointSettings
from pipeline.store.base import Store, sha256_of
from pipeline.store.stored import Stored
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


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """Checkpoints below the folder `top` of a store. Leaving the context waits for the running write.

    The first rank writes. `due`, `last` and `best` return the same on all ranks, and every rank has to call
    them.
    """

    def __init__(self, store: Store, top: str, settings: CheckpointSettings) -> None:
        self._store, self._top, self._settings = store, top, settings
        self._writer = ThreadPoolExecutor(1, "manta-checkpoint")
        self._written: Future[None] | None = None
        self._saved_at = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.close()

    def due(self, step: int) -> bool:
        """Return True if a checkpoint is due after this step, by its number or the first rank's clock."""
        steps, minutes = self._settings.steps, self._settings.minutes
        return (steps is not None and step % steps == 0) or (
            minutes is not None and _from_first_rank(time.monotonic() - self._saved_at > 60 * minutes)
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
        if Ranks().rank == 0:
            self._wait()
            self._written = self._writer.submit(self._write, step, state, figure)

    def last(self) -> Path | None:
        """Return a local copy of the file of the highest step; incomplete files are logged and skipped.

        None if there is no checkpoint.
        """
        return self._chosen(lambda record: (record.step, record.name))

    def best(self) -> Path | None:
        """Return a local copy of the file with the best score on dev, the earliest of equals.

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

    def _chosen(self, rank_of: Callable[[CheckpointRecord], Any]) -> Path | None:
        """Return the complete file of the highest rank, as found by the first rank of the process group."""
        self._wait()
        found = self._complete(rank_of) if Ranks().rank == 0 else None
        record: CheckpointRecord | None = _from_first_rank(found[0] if found else None)
        if found:
            return found[1]
        return self._store.local(record.path, record.sha256) if record else None

    def _complete(self, rank_of: Callable[[CheckpointRecord], Any]) -> tuple[CheckpointRecord, Path] | None:
        """Return the record of the highest rank whose file is complete, and a local copy of the file."""
        ranked = [record for record in self._records() if rank_of(record) is not None]
        for record in sorted(ranked, key=rank_of, reverse=True):
            try:
                return record, self._store.local(record.path, record.sha256)
            except FileNotFoundError:
                say(f"a checkpoint is skipped: {self._store.uri_of(record.path)} is missing")
            except DataError as error:
                say(f"a checkpoint is skipped: {error}")
        return None

    def _records(self) -> list[CheckpointRecord]:
        """Load all valid records; invalid ones are logged."""
        records = []
        for entry in self._store.list(self._top, ".json"):
            try:
                records.append(CheckpointRecord.load(self._store, entry.path))
            except DataError as error:
                say(f"a checkpoint is skipped: {error}")
        return [record for record in records if record is not None]

    def _write(self, step: int, state: dict[str, Any], figure: float | None) -> None:
        with self._store.scratch() as folder:
            path = folder / "checkpoint.pt"
            torch.save(state, path)
            digest = sha256_of(path)
            record = CheckpointRecord(
                step=step,
                path=f"{self._top}/step-{step:08d}-{digest[:12]}.pt",
                bytes=path.stat().st_size,
                sha256=digest,
                figure=figure,
            )
            self._store.put(path, record.path)
        self._store.write(record.name, record.to_json())
        self._prune(record)

    def _prune(self, written: CheckpointRecord) -> None:
        """Delete checkpoints that are neither among the last nor among the best ones.

        Steps after the one just written may belong to another process, and stay. Files are deleted too whose
        writer was killed before it could write their record.
        """
        records = self._records()
        past = [written, *(record for record in records if record.step < written.step)]
        latest = sorted(past, key=lambda record: record.step)[-self._settings.keep :]
        scored = sorted((record for record in past if record.figure is not None), key=_by_score)
        kept = {written.name, *(record.name for record in (*latest, *scored[-self._settings.keep_best :]))}
        for record in records:
            if record.step <= written.step and record.name not in kept:
                self._store.delete(record.name)
                self._store.delete(record.path)
        known, before = {record.path for record in records}, time.time() - _ABANDONED_S
        for entry in self._store.list(self._top, ".pt"):
            if entry.path not in known and entry.modified < before:
                self._store.delete(entry.path)


def load_state(file: Path) -> dict[str, Any]:
    """Load the state of a checkpoint: tensors and plain values only, without running code from the file."""
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def _by_score(record: CheckpointRecord) -> Any:
    """Sort key: the highest score last, the earliest of equals after later ones; None without a score."""
    return None if record.figure is None else (record.figure, -record.step)


def _from_first_rank(value: Any) -> Any:
    """Broadcast the first rank's value to every rank."""
    values = [value]
    if world_size() > 1:
        dist.broadcast_object_list(values, src=0)
    return values[0]
