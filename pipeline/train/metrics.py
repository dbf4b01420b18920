"""Metrics of a running training, written by the first rank to a file and to the configured trackers."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from statistics import fmean

import torch
from pydantic import ValidationError

from pipeline.errors import DataError
from pipeline.store.base import Store
from pipeline.train.loop import Step
from pipeline.train.measures import vector_metrics
from pipeline.train.metrics_line import MetricsLine
from pipeline.train.trackers import Tracker

METRICS = "metrics.jsonl"
_WRITE_INTERVAL_S = 3.0  # at least; readers see the file grow
_WRITE_INTERVAL_FACTOR = 50  # at least, times the duration of a write: at most 2 % of the time


class MetricsFile:
    """File with one JSON object per line.

    Each write replaces the whole file, so that no line is ever truncated.
    """

    def __init__(self, store: Store, path: str = METRICS, *, step: int = 0) -> None:
        """Read the existing lines.

        Args:
            store: of the training.
            path: of the file.
            step: last completed step; lines of later steps are dropped, because those steps will be repeated.

        Raises:
            DataError: the file is not a metrics file.
        """
        self._store, self._path = store, path
        old = read_metrics(store, path)
        self.lines = [line for line in old if line.step <= step]
        if old or step:
            last = self.lines.pop() if self.lines else MetricsLine(step=0, epoch=0.0)
            dropped = sum(line.resumed for line in old if line.step > step)
            self.lines.append(last.model_copy(update={"resumed": last.resumed + dropped + 1}))
        self._encoded = [_encoded(line) for line in self.lines]
        self._next, self._written = 0.0, not self.lines

    def add(self, line: MetricsLine) -> None:
        """Add a line; it is in the file after a few seconds at most.

        A line of the same step as the last one replaces it.
        """
        if self.lines and self.lines[-1].step == line.step:
            line = line.model_copy(update={"resumed": self.lines.pop().resumed})
            self._encoded.pop()
        self.lines.append(line)
        self._encoded.append(_encoded(line))
        self._written = False
        if time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        """Write all lines now."""
        if self._written:
            return
        began = time.monotonic()
        self._store.write(self._path, b"".join(self._encoded))
        self._written, ended = True, time.monotonic()
        self._next = ended + max(_WRITE_INTERVAL_S, _WRITE_INTERVAL_FACTOR * (ended - began))


def read_metrics(store: Store, path: str = METRICS) -> list[MetricsLine]:
    """Read the lines of the file; none if it is missing. DataError if it is not a metrics file."""
    try:
        content = store.read(path)
    except FileNotFoundError:
        return []
    try:
        return [MetricsLine.model_validate_json(line) for line in content.splitlines()]
    except ValidationError as error:
        raise DataError(
            store.uri_of(path),
            "one valid line of metrics per record",
            f"an invalid line ({error.errors()[0]['msg']})",
            "delete the file; the training continues without it",
        ) from None


def _encoded(line: MetricsLine) -> bytes:
    return line.model_dump_json(exclude_defaults=True).encode() + b"\n"


class TrainingLog(AbstractContextManager["TrainingLog"]):
    """Write means over the steps of a line to the file and to the trackers; used by one rank.

    Leaving the context writes everything and closes the trackers.
    """

    def __init__(
        self,
        file: MetricsFile,
        trackers: Sequence[Tracker] = (),
        *,
        every: int = 10,
        steps_per_epoch: int = 1,
        positives: bool = False,
    ) -> None:
        """Open the log.

        Args:
            file: metrics file.
            trackers: further destinations.
            every: number of steps per line.
            steps_per_epoch: number of steps of one pass over the rows.
            positives: row i of the first two views mean the same; see `Objective.has_positive_pairs`.
        """
        self._file, self._trackers, self._every, self._epoch = file, trackers, every, steps_per_epoch
        self._positives, self._line = positives, _Line()

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for tracker in self._trackers:
                stack.callback(tracker.close)
            self._end_line()
            self._file.write()

    def begin(self, dev: float | None, same_rows: Mapping[str, float] = {}) -> None:
        """Write the metrics before the first step."""
        if dev is not None or same_rows:
            self._write(MetricsLine(step=0, epoch=0.0, dev=dev, same_rows=same_rows))

    def add(self, step: Step, dev: float | None = None, same_rows: Mapping[str, float] = {}) -> None:
        """Add a step; metrics measured after it end the line."""
        self._line.add(step, vector_metrics(step.reps, positives=self._positives))
        if dev is not None or same_rows or step.number % self._every == 0:
            self._end_line(dev, same_rows)

    def checkpoint(self) -> None:
        """Write all steps so far, because a resumed training continues after this checkpoint."""
        self._end_line()
        self._file.write()
        for tracker in self._trackers:
            tracker.flush()

    def _end_line(self, dev: float | None = None, same_rows: Mapping[str, float] = {}) -> None:
        if self._line.last is not None:
            line, self._line = self._line.mean(self._epoch), _Line()
            self._write(line.model_copy(update={"dev": dev, "same_rows": same_rows}))

    def _write(self, line: MetricsLine) -> None:
        self._file.add(line)
        for tracker in self._trackers:
            tracker.log(line)


class _Line:
    """Sums over the steps of the unfinished line; it keeps no step, because that would keep its vectors."""

    def __init__(self) -> None:
        self.last: MetricsLine | None = None
        self._values: dict[str, list[float]] = {}
        self._parts: dict[str, list[float]] = {}
        self._counts: Counter[str] = Counter()
        self._rows, self._tokens, self._seconds, self._waited = 0, 0, 0.0, 0.0

    def add(self, step: Step, geometry: Mapping[str, float]) -> None:
        found = {"loss": float(step.loss.total), "gradient_norm": step.gradient_norm, **geometry}
        parts = {name: float(part) for name, part in step.loss.parts.items()}
        for sums, values in ((self._values, found), (self._parts, parts)):
            for name, value in values.items():
                sums.setdefault(name, []).append(value)
        self._counts.update(step.counts)
        self._rows, self._tokens = self._rows + step.rows, self._tokens + step.tokens
        self._seconds, self._waited = self._seconds + step.seconds, self._waited + step.waited_s
        on_gpu = step.reps and step.reps[0].is_cuda
        memory = torch.cuda.max_memory_allocated(step.reps[0].device) if on_gpu else None
        self.last = MetricsLine(
            step=step.number, epoch=0.0, learning_rate=step.learning_rate, memory_bytes=memory
        )

    def mean(self, steps_per_epoch: int) -> MetricsLine:
        """Return the line, with the means over its steps; there must be one."""
        assert self.last is not None
        seconds = max(self._seconds, 1e-9)
        return self.last.model_copy(
            update={
                **{name: fmean(values) for name, values in self._values.items()},
                "parts": {name: fmean(values) for name, values in self._parts.items()},
                "epoch": self.last.step / steps_per_epoch,
                "tokens_per_s": self._tokens / seconds,
                "rows_per_s": self._rows / seconds,
                "waiting": self._waited / seconds,
                "counts": {name: count for name, count in self._counts.items() if count},
                "rows": self._rows,
                "seconds": self._seconds,
            }
        )
