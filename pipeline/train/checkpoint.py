"""Checkpoints of a training in a store: written while it goes on, whole or not there, the last ones and the best ones kept.

A checkpoint is a file, named by its content, and a record with its sha256 that is written when the file is there; what has no record does not exist. So a training
that is killed while it writes goes on from the checkpoint before.
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

_ABANDONED_S = 3_600.0  # since its last byte: by then nobody is about to create a record of it


class CheckpointRecord(Stored):
    """What there is of one checkpoint."""

    step: int
    path: str
    bytes: int
    sha256: str
    figure: float | None = None
    """on dev at that step; higher is better"""

    @property
    def name(self) -> str:
        """Of its own file."""
        return f"{self.path.removesuffix('.pt')}.json"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, on this machine."""

    record: CheckpointRecord
    place: Path

    @property
    def step(self) -> int:
        return self.record.step

    @property
    def figure(self) -> float | None:
        return self.record.figure

    def load(self) -> dict[str, Any]:
        """The state that was saved. Tensors and plain values only: no code of the file is run."""
        state: dict[str, Any] = torch.load(self.place, map_location="cpu", weights_only=True)
        return state


class Checkpoints:
    """Those below `top` of a store. The first rank writes; `due`, `last` and `best` are the same on all ranks, and every rank has to call them."""

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
        """Whether the settings want one after this step: by its number, or by the first rank's clock."""
        settings = self._settings
        if settings.steps is not None and step % settings.steps == 0:
            return True
        return settings.minutes is not None and _of_first(
            time.monotonic() - self._saved_at > 60 * settings.minutes
        )

    def save(self, step: int, state: dict[str, Any], figure: float | None = None) -> None:
        """Write the state, which nobody may change any more, in a thread; one that is still being written is waited for, and what it met is raised here.

        figure: on dev, higher is better.
        """
        self._saved_at = time.monotonic()
        if Ranks().rank:
            return
        self._wait()
        self._written = self._writer.submit(self._write, step, state, figure)

    def last(self) -> Checkpoint | None:
        """The one of the highest step that is whole; those that are not are told of and passed over."""
        return self._chosen(lambda record: (record.step, record.name))

    def best(self) -> Checkpoint | None:
        """The whole one with the highest figure, the first of equal ones; None where none has a figure."""
        return self._chosen(_by_figure)

    def close(self) -> None:
        """Wait for what is being written; raises what it met."""
        try:
            self._wait()
        finally:
            self._writer.shutdown()

    def _wait(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _chosen(self, place_of: Callable[[CheckpointRecord], Any]) -> Checkpoint | None:
        """The whole one of the highest place, as the first rank finds it."""
        self._wait()
        found = self._highest(place_of) if Ranks().rank == 0 else None
        record: CheckpointRecord | None = _of_first(found.record if found else None)
        if found or record is None:
            return found
        return Checkpoint(record, self._store.local(record.path, record.sha256))

    def _highest(self, place_of: Callable[[CheckpointRecord], Any]) -> Checkpoint | None:
        placed = [record for record in self._records() if place_of(record) is not None]
        wholes = (self._whole(record) for record in sorted(placed, key=place_of, reverse=True))
        return next((whole for whole in wholes if whole), None)

    def _records(self) -> list[CheckpointRecord]:
        """Those that can be read."""
        read = (self._record(entry.path) for entry in self._store.list(self._top, ".json"))
        return [record for record in read if record]

    def _record(self, path: str) -> CheckpointRecord | None:
        try:
            return CheckpointRecord.load(self._store, path)
        except DataError as error:
            say(f"a checkpoint is passed over: {error}")
            return None

    def _whole(self, record: CheckpointRecord) -> Checkpoint | None:
        try:
            return Checkpoint(record, self._store.local(record.path, record.sha256))
        except FileNotFoundError:
            say(f"a checkpoint is passed over: {self._store.uri_of(record.path)} is not there")
        except DataError as error:
            say(f"a checkpoint is passed over: {error}")
        return None

    def _write(self, step: int, state: dict[str, Any], figure: float | None) -> None:
        with self._store.scratch() as folder:
            place = folder / "checkpoint.pt"
            torch.save(state, place)
            digest, size = sha256_of(place), place.stat().st_size
            record = CheckpointRecord(
                step=step,
                path=f"{self._top}/step-{step:08d}-{digest[:12]}.pt",
                bytes=size,
                sha256=digest,
                figure=figure,
            )
            self._store.put(place, record.path)
        self._store.write(record.name, record.to_json())
        self._prune(record)

    def _prune(self, written: CheckpointRecord) -> None:
        """Delete what is neither among the last ones nor among the best up to the one just written; later steps may be another process's, and stay."""
        records = self._records()
        past = [written, *(record for record in records if record.step < written.step)]
        latest = sorted(past, key=lambda record: record.step)[-self._settings.keep :]
        best = sorted((record for record in past if record.figure is not None), key=_by_figure)[
            -self._settings.keep_best :
        ]
        kept = {written.name} | {record.name for record in (*latest, *best)}
        for record in records:
            if record.step <= written.step and record.name not in kept:
                self._store.delete(record.name)
                self._store.delete(record.path)
        self._sweep(records)

    def _sweep(self, records: list[CheckpointRecord]) -> None:
        """Delete files whose writer was killed before it could record them."""
        known, before = {record.path for record in records}, time.time() - _ABANDONED_S
        for entry in self._store.list(self._top, ".pt"):
            if entry.path not in known and entry.modified < before:
                self._store.delete(entry.path)


def _by_figure(record: CheckpointRecord) -> Any:
    """The highest figure is highest, of equal ones the earliest."""
    return None if record.figure is None else (record.figure, -record.step)


def _of_first(value: Any) -> Any:
    """What the first rank has, on every rank."""
    values = [value]
    if world_size() > 1:
        dist.broadcast_object_list(values, src=0)
    return values[0]
