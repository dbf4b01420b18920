"""What workers and the driver record stands on the node's metrics port, in the text that Prometheus reads;
without Ray nothing happens and nothing fails.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.request import urlopen

import pytest

from pipeline.errors import DataError, GatesRefused
from pipeline.flows.workers import metrics
from pipeline.flows.workers.tasks import Pool
from pipeline.flows.workers.workers import Workers
from pipeline.store.manifest import Gate
from tests.flows.conftest import ROOT
from tests.flows.tasks import Double
from tests.infra.queries import names_used

_PATIENCE_S = 60.0
_SAMPLE = re.compile(r"^(ray_manta_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Text = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Encoding:
    """Says that it encoded, as an encode worker does."""

    def start(self) -> Callable[[int], int]:
        def work(item: int) -> int:
            metrics.count_encoded(
                100, 1_700, {"forward_s": 2.0, "waiting_s": 0.25, "store": 0.5, "texts": 100.0}
            )
            return item

        return work


def page() -> str:
    """What the node's metrics port says now."""
    import ray

    node = ray.nodes()[0]
    text: bytes = urlopen(
        f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", timeout=10
    ).read()
    return text.decode()


class Port:
    """The samples of the project on the node's port, summed over processes.

    A gauge is there for two reporting intervals only, so the last value seen counts.
    """

    def __init__(self) -> None:
        self.seen: Text = {}
        self.before: Text = {}

    def look(self) -> None:
        now: Text = {}
        own = {label for series in metrics.ALL for label in series.labels}
        for name, labels, value in _SAMPLE.findall(page()):
            key = (name, frozenset(pair for pair in _LABEL.findall(labels) if pair[0] in own))
            now[key] = now.get(key, 0.0) + float(value)
        self.seen |= now

    def value(self, series: metrics.MetricSeries, **labels: str) -> float:
        """Of a gauge; of a counter what it gained since `before`."""
        key = (series.exported, frozenset(labels.items()))
        return self.seen.get(key, 0.0) - (self.before.get(key, 0.0) if series.kind == "Counter" else 0.0)

    def reaches(self, look: Callable[[], object], expected: object) -> bool:
        """Whether the port comes to say what is expected; processes send in intervals."""

        def again() -> object:
            self.look()
            return look()

        return reaches(again, expected)


def reaches(look: Callable[[], object], expected: object) -> bool:
    """Whether the port comes to say what is expected; processes send in intervals."""
    deadline = time.monotonic() + _PATIENCE_S
    while look() != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    return time.monotonic() < deadline


@pytest.mark.slow
def test_series_are_exported_with_the_values_of_all_processes(ray_cluster: Workers):
    pytest.importorskip("opencensus", reason="Ray runs its metrics agent where ray[default] is installed")
    port = Port()
    port.look()
    port.before = dict(port.seen)
    assert sorted(
        number for number, _ in ray_cluster.map_units(Encoding(), list(range(6)), Pool(2, cpus=0.5))
    ) == list(range(6))
    with pytest.raises(DataError):
        ray_cluster.run(Double(), 13, Pool(1))
    metrics.count_quarantined(
        {"rows": 900, "quarantined": 9, "quarantined_empty_text": 7, "quarantined_duplicate_id": 2}
    )
    metrics.record_gates(
        {
            "recall_at_10": Gate(value=0.97, threshold=0.95, passed=True),
            "unique_ids": Gate(value=3, threshold=None, passed=False),
        }
    )
    metrics.record_release(42, 600, "2026-01-02T03:04:05+00:00")
    with pytest.raises(GatesRefused), metrics.failures_counted():
        raise GatesRefused(candidate="candidates/0", refusals=("recall",))
    metrics.count_night("published")
    of_gate = (metrics.GATE_VALUE, metrics.GATE_THRESHOLD, metrics.GATE_PASSED)
    assert port.reaches(
        lambda: [port.value(series, gate="recall_at_10") for series in of_gate], [0.97, 0.95, 1.0]
    )
    assert port.reaches(
        lambda: [port.value(series, gate="unique_ids") for series in of_gate[::2]], [3.0, 0.0]
    )
    assert port.reaches(
        lambda: [port.value(series) for series in (metrics.RELEASE, metrics.LIVE_ROWS, metrics.PUBLISHED)],
        [42.0, 600.0, 1767323045.0],
    )
    assert port.reaches(lambda: port.value(metrics.NIGHTS, outcome="published", exit_code="0"), 1)
    assert port.value(metrics.NIGHTS, outcome="refused", exit_code="5") == 1
    assert port.reaches(lambda: port.value(metrics.ROWS), 600)
    assert port.value(metrics.TOKENS) == 6 * 1_700
    assert [
        port.value(metrics.SECONDS, doing=doing) for doing in ("device", "tokenizer", "store", "model")
    ] == [12.0, 1.5, 3.0, 0.0]
    assert port.value(metrics.UNITS, task="Encoding", outcome="done") == 6
    assert port.reaches(lambda: port.value(metrics.UNITS, task="Double", outcome="failed"), 1)
    assert [port.value(metrics.QUARANTINED, reason=reason) for reason in ("empty_text", "duplicate_id")] == [
        7,
        2,
    ]


def test_series_of_ray_itself_that_charts_and_alerts_use_are_exported_by_this_ray(ray_cluster: Workers):
    pytest.importorskip("opencensus", reason="Ray runs its metrics agent where ray[default] is installed")
    wanted = {name for name in names_used() if not name.startswith("ray_manta_")}
    assert wanted == {"ray_node_mem_used", "ray_node_mem_total"}
    assert reaches(lambda: len(wanted & set(re.findall(r"^(\w+)\{", page(), re.MULTILINE))), len(wanted))


def test_without_ray_nothing_is_imported_and_nothing_fails():
    program = (
        "import sys\nfrom pipeline.flows.workers import metrics\nmetrics.record_release(1, 2, "
        "'')\nmetrics.count_night('unchanged', 0)\n"
        "metrics.count_encoded(1, 2, {})\nprint('ray' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_names_are_those_that_prometheus_allows_and_none_stands_twice():
    names = [series.exported for series in metrics.ALL]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)
    assert all(re.fullmatch(r"[a-z_]+", label) for series in metrics.ALL for label in series.labels)
