"""Metrics of a running training, written by the first rank to a file and to the configured trackers."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from statistics import fmean

import torch
from pydantic import ValidationError

from pipeline.errors import DataError
from pipeline.store.files.base import Store
from pipeline.train.dev import DevMetrics
from pipeline.train.loop import Step
from pipeline.train.metrics_line import MetricsLine
from pipeline.train.trackers import Tracker
from pipeline.train.vector_metrics import vector_metrics

METRICS = "metrics.jsonl"
# Between two writes of the file there are at least 3 seconds, and at least 50 times the duration of a write,
# so that writing takes at most 2 % of the time.
_MIN_INTERVAL_S = 3.0
_MIN_INTERVAL_WRITES = 50


class MetricsFile:
    """Metrics file of a training, with one JSON object per line.

    Each write replaces the whole file, so that no line is ever truncated.
    """

    def __init__(self, store: Store, *, step: int = 0) -> None:
        """Read the existing lines. If there are any, or `step` is above 0, mark the training as resumed.

        Args:
            store: store of the training.
            step: last completed step; lines of later steps are dropped, because those steps will be repeated.

        Raises:
            DataError: the file is not a metrics file.
        """
        self._store = store
        existing = read_metrics(store)
        self.lines = [line for line in existing if line.step <= step]
        if existing or step:
            last = self.lines.pop() if self.lines else MetricsLine(step=0, epoch=0.0)
            resumed_in_dropped = sum(line.resumed for line in existing if line.step > step)
            self.lines.append(last.model_copy(update={"resumed": last.resumed + resumed_in_dropped + 1}))
        self._next_write, self._is_written = 0.0, not self.lines

    def add(self, line: MetricsLine) -> None:
        """Add a line, and write the file if the last write is long enough ago.

        A line for the same step as the last line replaces the last line.
        """
        if self.lines and self.lines[-1].step == line.step:
            line = line.model_copy(update={"resumed": self.lines.pop().resumed})
        self.lines.append(line)
        self._is_written = False
        if time.monotonic() >= self._next_write:
            self.write()

    def write(self) -> None:
        """Write all lines now, unless the file has them already."""
        if self._is_written:
            return
        started = time.monotonic()
        encoded = (line.model_dump_json(exclude_defaults=True) + "\n" for line in self.lines)
        self._store.write(METRICS, "".join(encoded).encode())
        ended = time.monotonic()
        self._next_write = ended + max(_MIN_INTERVAL_S, _MIN_INTERVAL_WRITES * (ended - started))
        self._is_written = True


def read_metrics(store: Store) -> list[MetricsLine]:
    """Read the lines of the metrics file; empty if it is missing. Raises DataError for an invalid line."""
    try:
        content = store.read(METRICS)
    except FileNotFoundError:
        return []
    try:
        return [MetricsLine.model_validate_json(line) for line in content.splitlines()]
    except ValidationError as error:
        raise DataError(
            store.uri_of(METRICS),
            "valid metrics in every line",
            f"an invalid line ({error.errors()[0]['msg']})",
            "delete the file; the training continues without it",
        ) from None


class TrainingLog(AbstractContextManager["TrainingLog"]):
    """Log of a training, used by one rank: lines with means over several steps.

    Lines go to the metrics file and to the trackers. Leaving the context writes everything and closes the
    trackers.
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
            positives: `Objective.has_positive_pairs` of the training's objective.
        """
        self._file, self._trackers = file, trackers
        self._every, self._steps_per_epoch, self._positives = every, steps_per_epoch, positives
        self._line = _UnfinishedLine()

    def __exit__(self, *_: object) -> None:
        with ExitStack() as close_trackers:  # closes them even if the last line cannot be written
            for tracker in self._trackers:
                close_trackers.callback(tracker.close)
            self._end_line()
            self._file.write()

    def begin(self, dev: DevMetrics | None, same_rows: Mapping[str, float] = {}) -> None:
        """Write the metrics that were measured before the first step, if any; see `MetricsLine`."""
        if dev is not None or same_rows:
            self._write(_with_measured(MetricsLine(step=0, epoch=0.0), dev, same_rows))

    def add(self, step: Step, dev: DevMetrics | None = None, same_rows: Mapping[str, float] = {}) -> None:
        """Add a step, and end the line if it has enough steps or if metrics were measured after the step."""
        self._line.add(step, vector_metrics(step.reps, positives=self._positives))
        if dev is not None or same_rows or step.number % self._every == 0:
            self._end_line(dev, same_rows)

    def checkpoint(self) -> None:
        """Write all steps so far, because a resumed training continues after this checkpoint."""
        self._end_line()
        self._file.write()
        for tracker in self._trackers:
            tracker.flush()

    def _end_line(self, dev: DevMetrics | None = None, same_rows: Mapping[str, float] = {}) -> None:
        if self._line.last is not None:
            line, self._line = self._line.mean(self._steps_per_epoch), _UnfinishedLine()
            self._write(_with_measured(line, dev, same_rows))

    def _write(self, line: MetricsLine) -> None:
        self._file.add(line)
        for tracker in self._trackers:
            tracker.log(line)


def _with_measured(line: MetricsLine, dev: DevMetrics | None, same_rows: Mapping[str, float]) -> MetricsLine:
    """Add the metrics that were measured after the steps of a line."""
    on_dev = {} if dev is None else {"dev": dev.score, "dev_geometry": dev.geometry}
    return line.model_copy(update={**on_dev, "same_rows": same_rows})


class _UnfinishedLine:
    """Metrics of the steps since the last line.

    It keeps no `Step`, because that would keep the step's vectors in memory.
    """

    def __init__(self) -> None:
        self.last: MetricsLine | None = None
        self._values: dict[str, list[float]] = {}
        self._parts: dict[str, list[float]] = {}
        self._counts: Counter[str] = Counter()
        self._rows, self._tokens, self._seconds, self._waited_s = 0, 0, 0.0, 0.0

    def add(self, step: Step, geometry: Mapping[str, float]) -> None:
        """Add a step, with the metrics of its vectors."""
        metrics = {"loss": float(step.loss.total), "gradient_norm": step.gradient_norm, **geometry}
        for name, value in metrics.items():
            self._values.setdefault(name, []).append(value)
        for name, part in step.loss.parts.items():
            self._parts.setdefault(name, []).append(float(part))
        self._counts.update(step.counts)
        self._rows += step.rows
        self._tokens += step.tokens
        self._seconds += step.seconds
        self._waited_s += step.waited_s
        on_gpu = step.reps and step.reps[0].is_cuda
        memory = torch.cuda.max_memory_allocated(step.reps[0].device) if on_gpu else None
        self.last = MetricsLine(
            step=step.number, epoch=0.0, learning_rate=step.learning_rate, memory_bytes=memory
        )

    def mean(self, steps_per_epoch: int) -> MetricsLine:
        """Return the line, with means over its steps; there must be at least one step."""
        assert self.last is not None
        seconds = max(self._seconds, 1e-9)
        return self.last.model_copy(
            update={
                **{name: fmean(values) for name, values in self._values.items()},
                "parts": {name: fmean(values) for name, values in self._parts.items()},
                "epoch": self.last.step / steps_per_epoch,
                "tokens_per_s": self._tokens / seconds,
                "rows_per_s": self._rows / seconds,
                "waiting": self._waited_s / seconds,
                "counts": {name: count for name, count in self._counts.items() if count},
                "rows": self._rows,
                "seconds": self._seconds,
            }
        )
