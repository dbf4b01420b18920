"""What the first rank writes of a training while it goes on: a line of figures for every few steps, in a file and wherever the settings want them."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Self

import torch
from pydantic import ValidationError
from torch import Tensor

from pipeline.errors import DataError
from pipeline.store.base import Store
from pipeline.train.figures import Figures
from pipeline.train.loop import Step
from pipeline.train.measures import measured
from pipeline.train.trackers import Tracker

METRICS = "metrics.jsonl"
_EVERY_S = 3.0  # between two writes of the file; a reader sees it grow
_SHARE = 50  # and so many times as long as a write takes: no more than 2 % of the time goes into it

_PART = "parts/"


class MetricsFile:
    """A JSON object for every line. The file is written whole, so that it is never half of a line, and in any store."""

    def __init__(self, store: Store, path: str = METRICS, *, step: int = 0) -> None:
        """step: the last one that is done. Lines of later steps, which are going to be made again, are dropped.

        DataError for a file that is none of ours.
        """
        self._store, self._path = store, path
        old = read_metrics(store, path)
        self.lines = [line for line in old if line.step <= step]
        if (
            anew := sum(line.resumed for line in old)
            - sum(line.resumed for line in self.lines)
            + bool(old or step)
        ):
            last = self.lines.pop() if self.lines else Figures(step=0, epoch=0.0)
            self.lines.append(last.model_copy(update={"resumed": last.resumed + anew}))
        self._encoded = [_encoded(line) for line in self.lines]
        self._next, self._written = 0.0, not self.lines

    def add(self, line: Figures) -> None:
        """One more line, in the file after a few seconds. A line of the same step as the last one, which has figures that were not there, goes in its place."""
        if self.lines and self.lines[-1].step == line.step:
            line = line.model_copy(update={"resumed": self.lines.pop().resumed})
            self._encoded.pop()
        self.lines.append(line)
        self._encoded.append(_encoded(line))
        self._written = False
        if time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        """All lines are in the file."""
        if self._written:
            return
        began = time.monotonic()
        self._store.write(self._path, b"".join(self._encoded))
        ended = time.monotonic()
        self._next, self._written = ended + max(_EVERY_S, _SHARE * (ended - began)), True


def read_metrics(store: Store, path: str = METRICS) -> list[Figures]:
    """The lines of the file; none where there is none. DataError for one that is none of ours."""
    try:
        content = store.read(path)
    except FileNotFoundError:
        return []
    try:
        return [Figures.model_validate_json(line) for line in content.splitlines()]
    except ValidationError as error:
        found, remedy = (
            f"one that is none ({error.errors()[0]['msg']})",
            "delete the file: the training goes on without it",
        )
        raise DataError(store.uri_of(path), "a line of figures for every few steps", found, remedy) from None


def _encoded(line: Figures) -> bytes:
    return line.model_dump_json(exclude_defaults=True).encode() + b"\n"


class TrainingLog:
    """Means over the steps of a line, to the file and to the trackers. For one rank; it computes nothing that others take part in."""

    def __init__(
        self,
        file: MetricsFile,
        trackers: Sequence[Tracker] = (),
        *,
        every: int = 10,
        steps_per_epoch: int = 1,
        positives: bool = False,
    ) -> None:
        """every: steps of a line; positives: whether row i of the first two views mean the same, as the objective says."""
        self._file, self._trackers, self._every, self._epoch = file, trackers, every, steps_per_epoch
        self._line = _Line(positives)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def lines(self) -> list[Figures]:
        """All of this training, those before it was gone on with too."""
        return self._file.lines

    def begin(self, dev: float | None, same_rows: Mapping[str, float] = {}) -> None:
        """Write the figures before the first step."""
        if dev is not None or same_rows:
            self._tell(Figures(step=0, epoch=0.0, dev=dev, same_rows=same_rows))

    def add(self, step: Step, dev: float | None = None, same_rows: Mapping[str, float] = {}) -> None:
        """Add one more step. Figures that were measured after it end the line."""
        self._line.add(step)
        if dev is not None or same_rows or step.number % self._every == 0:
            self._end_line(dev, same_rows)

    def checkpoint(self) -> None:
        """There is a checkpoint of the steps so far: a training that goes on from there finds them all in lines of their own."""
        self._end_line()
        self._file.write()
        for tracker in self._trackers:
            tracker.keep()

    def close(self) -> None:
        """Everything is written."""
        with ExitStack() as stack:
            for tracker in self._trackers:
                stack.callback(tracker.close)
            self._end_line()
            self._file.write()

    def _end_line(self, dev: float | None = None, same_rows: Mapping[str, float] = {}) -> None:
        if self._line.count:
            line = self._line.ended(self._epoch, dev)
            self._tell(line.model_copy(update={"same_rows": same_rows}))

    def _tell(self, line: Figures) -> None:
        self._file.add(line)
        for tracker in self._trackers:
            tracker.tell(line)


class _Line:
    """Sums over the steps of the line that is not ended yet; no step itself, which would keep its vectors."""

    def __init__(self, positives: bool) -> None:
        self._positives = positives
        self._empty()

    def _empty(self) -> None:
        self.count, self._last = 0, Figures(step=0, epoch=0.0)
        self._values: dict[str, list[float]] = {}
        self._counts: Counter[str] = Counter()
        self._rows, self._tokens, self._seconds, self._waited = 0, 0, 0.0, 0.0

    def add(self, step: Step) -> None:
        parts = {f"{_PART}{name}": float(value) for name, value in step.loss.parts.items()}
        found = {
            "loss": float(step.loss.total),
            "gradient_norm": step.gradient_norm,
            **parts,
            **measured(step.reps, positives=self._positives),
        }
        for name, value in found.items():
            self._values.setdefault(name, []).append(value)
        self._counts.update(step.counts)
        self._rows, self._tokens = self._rows + step.rows, self._tokens + step.tokens
        self._seconds, self._waited = self._seconds + step.seconds, self._waited + step.waited_s
        self.count += 1
        self._last = Figures(
            step=step.number, epoch=0.0, learning_rate=step.learning_rate, memory_bytes=_memory(step.reps)
        )

    def ended(self, steps_per_epoch: int, dev: float | None) -> Figures:
        """The line; the next one begins."""
        means = {name: math.fsum(values) / len(values) for name, values in self._values.items()}
        seconds = max(self._seconds, 1e-9)
        line = self._last.model_copy(
            update={
                **{name: value for name, value in means.items() if not name.startswith(_PART)},
                "parts": {
                    name.removeprefix(_PART): value for name, value in means.items() if name.startswith(_PART)
                },
                "epoch": self._last.step / steps_per_epoch,
                "tokens_per_s": self._tokens / seconds,
                "rows_per_s": self._rows / seconds,
                "waiting": self._waited / seconds,
                "counts": {name: count for name, count in self._counts.items() if count},
                "rows": self._rows,
                "seconds": self._seconds,
                "dev": dev,
            }
        )
        self._empty()
        return line


def _memory(reps: Sequence[Tensor]) -> int | None:
    """The most that the GPU of these vectors has held."""
    return torch.cuda.max_memory_allocated(reps[0].device) if reps and reps[0].is_cuda else None
