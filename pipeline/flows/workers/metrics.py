"""Report metrics to Prometheus through the metrics agent of every Ray node.

Without a connection to Ray each call only calls `listeners`, which `metrics_file` and `mlflow_run` add. Ray
sends a process's metrics to its node's agent every ten seconds and when the process disconnects. The node's
metrics port serves a gauge as `ray_<name>` and a counter as `ray_<name>_total`.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.errors import GatesRefused
from pipeline.exit_codes import exit_code_of
from pipeline.store.records.units import counts_under
from pipeline.store.releases.manifest import Choice, Gate


@dataclass(frozen=True)
class MetricSeries:
    """A metric with its labels, under one name in Prometheus."""

    kind: Literal["Counter", "Gauge"]
    name: str
    """name without the prefix and suffix that Ray adds"""
    description: str
    labels: tuple[str, ...] = ()

    def record(self, value: float, **labels: str) -> None:
        """Add to a counter, or set a gauge."""
        for listener in listeners:
            listener(self, value, labels)
        if not _is_connected():
            return
        from ray.util import metrics

        # Ray refuses other characters
        labels = {name: text.encode("ascii", "backslashreplace").decode() for name, text in labels.items()}
        metric: Any = getattr(metrics, self.kind)(
            self.name, description=self.description, tag_keys=self.labels
        )
        if self.kind == "Gauge":
            metric.set(value, tags=labels)
        elif value > 0:  # Ray refuses 0
            metric.inc(value, tags=labels)


listeners: list[Callable[[MetricSeries, float, Mapping[str, str]], None]] = []
"""functions that are called with each value that this process records"""


def is_recorded() -> bool:
    """Return whether anything takes the values that this process records."""
    return bool(listeners) or _is_connected()


def _is_connected() -> bool:
    ray = sys.modules.get("ray")  # not imported by a night in which nothing changed
    return ray is not None and bool(ray.is_initialized())


ROWS = MetricSeries("Counter", "manta_encoded_rows", "rows whose vectors were computed")
TOKENS = MetricSeries("Counter", "manta_encoded_tokens", "tokens of those rows")
SECONDS = MetricSeries(
    "Counter",
    "manta_worker_seconds",
    "seconds that encode workers spent on the device, or waiting for tokenizer, store or model",
    ("doing",),
)
UNITS = MetricSeries(
    "Counter",
    "manta_units",
    "items of work that workers finished, or started again after a process died",
    ("task", "outcome"),
)
QUARANTINED = MetricSeries("Counter", "manta_quarantined_rows", "rows that a night quarantined", ("reason",))
NIGHTS = MetricSeries("Counter", "manta_nights", "finished nights by outcome", ("outcome", "exit_code"))
FOLLOW_UP_FAILED = MetricSeries(
    "Gauge",
    "manta_follow_up_failed",
    "1 if the erasure, an export or the prune of a night failed, else 0",
    ("step",),
)
EVENTS = MetricSeries(
    "Counter",
    "manta_events",
    "events that release.on_event was told, or did not take",
    ("event", "outcome"),
)
RELEASE = MetricSeries("Gauge", "manta_release_number", "number of the current release")
PUBLISHED = MetricSeries(
    "Gauge",
    "manta_release_published_timestamp_seconds",
    "Unix time of the commit of the current release; its age is time() minus this",
)
LIVE_ROWS = MetricSeries("Gauge", "manta_release_rows", "live rows of the current release")
CHANGED_ROWS = MetricSeries(
    "Gauge",
    "manta_changed_rows",
    "new, changed, deleted, encoded and filtered rows of the last candidate",
    ("change",),
)
DRIFT = MetricSeries(
    "Gauge", "manta_drift", "drift of the last candidate's vectors since the whitening was decided"
)
GATE_VALUE = MetricSeries("Gauge", "manta_gate_value", "value of a gate for the last candidate", ("gate",))
GATE_THRESHOLD = MetricSeries("Gauge", "manta_gate_threshold", "threshold of a gate", ("gate",))
GATE_PASSED = MetricSeries(
    "Gauge", "manta_gate_passed", "1 if the last candidate passed the gate, else 0", ("gate",)
)

SEARCH_EFFORT = MetricSeries(
    "Gauge",
    "manta_search_effort",
    "nprobe or efSearch that the last candidate needs for rows, and for rows and gates.queries",
    ("chosen_for",),
)
RELEVANCE_SLICE = MetricSeries(
    "Gauge",
    "manta_relevance_slice",
    "scores of the last candidate for the judged queries of one slice",
    ("metric", "slice"),
)


def count_unit(task: str, outcome: Literal["done", "failed", "restarted"]) -> None:
    """Count one item of a pool. Called on the worker.

    Args:
        task: class name of the task.
        outcome: "failed" if the task raised a PipelineError; "restarted" if an earlier process died while it
            ran the item.
    """
    UNITS.record(1, task=task, outcome=outcome)


def count_encoded(rows: int, tokens: int, seconds: Mapping[str, float]) -> None:
    """Count the rows and tokens of one encoded unit, and the worker's time. Called on the worker.

    Args:
        seconds: the worker's seconds by what it used (device) or waited for (tokenizer, store, model).
    """
    ROWS.record(rows)
    TOKENS.record(tokens)
    for doing, amount in seconds.items():
        SECONDS.record(amount, doing=doing)


def count_quarantined(counts: Mapping[str, int]) -> None:
    """Count a night's quarantined rows by reason. Called on the driver.

    Args:
        counts: counts of the release, of which those called `quarantined_<reason>` are used.
    """
    for reason, rows in counts_under("quarantined_", counts).items():
        QUARANTINED.record(rows, reason=reason)


def record_gates(gates: Mapping[str, Gate]) -> None:
    """Record the results of a candidate's gates, whether it is published or refused."""
    for name, gate in gates.items():
        if gate.value is not None or not gate.passed:  # else it was not measured
            GATE_PASSED.record(float(gate.passed), gate=name)
        if gate.value is not None:
            GATE_VALUE.record(float(gate.value), gate=name)
        if gate.threshold is not None:
            GATE_THRESHOLD.record(float(gate.threshold), gate=name)


def record_effort(effort: int | None, rows_effort: int | None) -> None:
    """Record the search effort of a candidate; nothing for an index that always searches everything.

    Args:
        rows_effort: the effort that rows alone need; None without gates.queries.
    """
    if effort is None:
        return
    SEARCH_EFFORT.record(effort if rows_effort is None else rows_effort, chosen_for="rows")
    if rows_effort is not None:
        SEARCH_EFFORT.record(effort, chosen_for="rows and queries")


def record_slices(slices: Mapping[str, Mapping[str, float]]) -> None:
    """Record the scores of a candidate by slice of the judged queries, and by metric."""
    for name, scores in slices.items():
        for metric, value in scores.items():
            RELEVANCE_SLICE.record(value, metric=metric, slice=name)


def record_changes(counts: Mapping[str, int], choices: Iterable[Choice]) -> None:
    """Record the counts of a candidate's changed rows, and the drift that its decisions measured."""
    for change in ("new", "changed", "deleted", "encoded", "filtered"):
        CHANGED_ROWS.record(counts.get(change, 0), change=change)
    for choice in choices:
        measured = (choice.numbers.get(name) for name in ("drift", "shift", "spread", "outside"))
        if parts := [float(part) for part in measured if part is not None]:
            DRIFT.record(max(parts))


def record_release(number: int, rows: int, committed_at: float) -> None:
    """Record the current release.

    Args:
        committed_at: Unix time of its commit.
    """
    RELEASE.record(number)
    LIVE_ROWS.record(rows)
    PUBLISHED.record(committed_at)


def count_night(outcome: str, exit_code: int = 0) -> None:
    """Count a finished night, with its exit code. Call it while the driver is connected to Ray."""
    NIGHTS.record(1, outcome=outcome, exit_code=str(exit_code))


def count_failed_night(error: BaseException) -> None:
    """Count a night that an error ended: a refusal, a signal by which it was stopped, or a failure."""
    count_night(outcome_of_error(error), exit_code_of(error))


def outcome_of_error(error: BaseException) -> Literal["refused", "stopped", "failed"]:
    """Return how a night ended that an error ended."""
    if isinstance(error, GatesRefused):
        return "refused"
    return "stopped" if isinstance(error, KeyboardInterrupt) else "failed"


@contextlib.contextmanager
def count_failures() -> Iterator[None]:
    """Count the night as refused, stopped or failed if the block raises an error, which propagates."""
    try:
        yield
    except BaseException as error:
        count_failed_night(error)
        raise
