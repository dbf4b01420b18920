"""Checkpoints of a training in a store, written in the background; the latest and the best are kept.

A checkpoint is a file with a hash of its content in its name, and a record with the file's sha256, which is
written last. A file without a record is ignored, so a training that is killed while it writes continues from
the previous checkpoint. This module knows nothing of a cluster.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import Field

from pipeline.errors import DataError
from pipeline.log import announce
from pipeline.settings.training import CheckpointSettings
from pipeline.store.files.base import Store, sha256_of
from pipeline.store.records.sealed_json import Stored
from pipeline.train.gather import Ranks, world_size

# Age at which a file without a record is deleted; by then no process is about to write its record.
_ABANDONED_S = 3_600.0


class CheckpointRecord(Stored):
    """Record of one checkpoint."""

    step: int
    path: str
    bytes: int
    sha256: str
    score: float | None = Field(None, alias="figure")
    """score on dev at that step; higher is better"""

    @property
    def name(self) -> str:
        """Path of the record's own file."""
        return f"{self.path.removesuffix('.pt')}.json"


class Checkpoints:
    """Checkpoints in a folder of a store. The caller has to close them, which waits for the running write.

    The first rank writes. `due`, `last` and `best` return the same on all ranks, and every rank has to call
    them.
    """

    def __init__(self, store: Store, folder: str, settings: CheckpointSettings) -> None:
        self._store, self._folder, self._settings = store, folder, settings
        self._writer = ThreadPoolExecutor(1, "manta-checkpoint")
        self._running_write: Future[None] | None = None
        self._saved_at = time.monotonic()

    def due(self, step: int) -> bool:
        """Return True if a checkpoint is due after this step: by steps, or by the first rank's clock."""
        steps, minutes = self._settings.steps, self._settings.minutes
        return (steps is not None and step % steps == 0) or (
            minutes is not None and _from_first_rank(time.monotonic() - self._saved_at > 60 * minutes)
        )

    def save(self, step: int, state: dict[str, Any], score: float | None = None) -> None:
        """Write the state in a thread; the caller must not modify it any more.

        Waits for the previous write, and raises its error.

        Args:
            step: number of the last step.
            state: tensors and plain values.
            score: score on dev, higher is better.
        """
        self._saved_at = time.monotonic()
        if Ranks().rank == 0:
            self._wait()
            self._running_write = self._writer.submit(self._write, step, state, score)

    def last(self) -> Path | None:
        """Return a local copy of the checkpoint of the highest step; None if there is none.

        Checkpoints that are missing or damaged are logged and skipped.
        """
        return self._local_copy_of_highest(lambda record: (record.step, record.name))

    def best(self, step: int | None = None) -> Path | None:
        """Return a local copy of the checkpoint with the best score on dev; None if none has a score.

        Of equal scores the earliest wins. Checkpoints that are missing or damaged are logged and skipped.

        Args:
            step: step of the checkpoint; None for any step.
        """
        return self._local_copy_of_highest(
            lambda record: _by_score(record) if step in (None, record.step) else None
        )

    def close(self) -> None:
        """Wait for the running write, and raise its error."""
        try:
            self._wait()
        finally:
            self._writer.shutdown()

    def _wait(self) -> None:
        running, self._running_write = self._running_write, None
        if running is not None:
            running.result()

    def _local_copy_of_highest(self, sort_key: Callable[[CheckpointRecord], Any]) -> Path | None:
        """Return a local copy of the intact checkpoint with the highest key; None if there is none.

        The first rank chooses, so that all ranks have the same checkpoint.

        Args:
            sort_key: key of a record; None for a record that must not be chosen.
        """
        self._wait()
        chosen = self._highest_intact(sort_key) if Ranks().rank == 0 else None
        record: CheckpointRecord | None = _from_first_rank(chosen[0] if chosen else None)
        if chosen:
            return chosen[1]
        return self._store.local(record.path, record.sha256) if record else None

    def _highest_intact(
        self, sort_key: Callable[[CheckpointRecord], Any]
    ) -> tuple[CheckpointRecord, Path] | None:
        """Return the record with the highest key whose file is intact, and a local copy of the file."""
        eligible = [record for record in self._records() if sort_key(record) is not None]
        for record in sorted(eligible, key=sort_key, reverse=True):
            try:
                return record, self._store.local(record.path, record.sha256)
            except FileNotFoundError:
                announce(f"a checkpoint is skipped: {self._store.uri_of(record.path)} is missing")
            except DataError as error:
                announce(f"a checkpoint is skipped: {error}")
        return None

    def _records(self) -> list[CheckpointRecord]:
        """Load all valid records; invalid ones are logged."""
        records = []
        for entry in self._store.list(self._folder, ".json"):
            try:
                records.append(CheckpointRecord.load(self._store, entry.path))
            except DataError as error:
                announce(f"a checkpoint is skipped: {error}")
        return [record for record in records if record is not None]

    def _write(self, step: int, state: dict[str, Any], score: float | None) -> None:
        """Write the file, then its record, then delete checkpoints that are no longer kept."""
        with self._store.scratch() as scratch:
            path = scratch / "checkpoint.pt"
            torch.save(state, path)
            digest = sha256_of(path)
            record = CheckpointRecord(
                step=step,
                path=f"{self._folder}/step-{step:08d}-{digest[:12]}.pt",
                bytes=path.stat().st_size,
                sha256=digest,
                score=score,
            )
            self._store.put(path, record.path)
        self._store.write(record.name, record.to_json())
        self._prune(record)

    def _prune(self, written: CheckpointRecord) -> None:
        """Delete checkpoints that are neither among the last nor among the best ones, and abandoned files.

        Checkpoints of later steps than `written` may belong to another process, and stay. A file is abandoned
        if its writer was killed before it could write the record.
        """
        records = self._records()
        past = [written, *(record for record in records if record.step < written.step)]
        latest = sorted(past, key=lambda record: record.step)[-self._settings.keep :]
        scored = sorted((record for record in past if record.score is not None), key=_by_score)
        best = scored[-self._settings.keep_best :]
        kept_names = {written.name, *(record.name for record in (*latest, *best))}
        for record in records:
            if record.step <= written.step and record.name not in kept_names:
                self._store.delete(record.name)
                self._store.delete(record.path)
        recorded = {record.path for record in records}
        abandoned_before = time.time() - _ABANDONED_S
        for entry in self._store.list(self._folder, ".pt"):
            if entry.path not in recorded and entry.modified < abandoned_before:
                self._store.delete(entry.path)


def load_state(file: Path) -> dict[str, Any]:
    """Load the state of a checkpoint: tensors and plain values only, without running code from the file."""
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def _by_score(record: CheckpointRecord) -> Any:
    """Return a sort key by score on dev, higher for the earlier of equal scores; None without a score."""
    return None if record.score is None else (record.score, -record.step)


def _from_first_rank(value: Any) -> Any:
    """Broadcast the first rank's value to every rank."""
    values = [value]
    if world_size() > 1:
        dist.broadcast_object_list(values, src=0)
    return values[0]
