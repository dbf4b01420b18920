"""The metrics of workers and the driver are on the node's metrics port, in the text format of Prometheus;
without Ray recording does nothing.
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
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import Pool
from pipeline.store.releases.manifest import Gate
from tests.flows.conftest import ROOT
from tests.flows.tasks import Double
from tests.infra.queries import exported, names_used

_PATIENCE_S = 60.0
MARK = 123_456  # the number of a release, which no other test uses
_SAMPLE = re.compile(r"^(ray_manta_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Labels = frozenset[tuple[str, str]]
Samples = dict[tuple[str, Labels], float]


@dataclass(frozen=True)
class Encoding:
    """Record encoded rows, as an encode worker does."""

    def start(self) -> Callable[[int], int]:
        def work(item: int) -> int:
            metrics.count_encoded(100, 1_700, {"device": 2.0, "tokenizer": 0.25, "store": 0.5})
            return item

        return work


def page() -> str:
    """Read the node's metrics port."""
    import ray

    node = ray.nodes()[0]
    text: bytes = urlopen(
        f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", timeout=10
    ).read()
    return text.decode()


class Port:
    """The samples of the project on the node's port.

    The port drops the samples of a process that has ended, and a gauge after two reporting intervals, so
    `seen` keeps the last value that each process has sent.
    """

    def __init__(self) -> None:
        self.seen: Samples = {}
        self.before: Samples = {}

    def look(self) -> None:
        for name, labels, value in _SAMPLE.findall(page()):
            self.seen[name, frozenset(_LABEL.findall(labels))] = float(value)

    def begin(self) -> None:
        """Count from now on, after the port has shown everything that this process counted before."""
        metrics.record_release(MARK, 0, 0.0)
        assert self.reaches(lambda: self.value(metrics.RELEASE), MARK)
        self.before = dict(self.seen)

    def value(self, series: metrics.MetricSeries, **labels: str) -> float:
        """Return the value of a gauge, or the sum of what all processes have counted since `begin`."""
        keys = [key for key in self.seen if key[0] == exported(series) and key[1] >= set(labels.items())]
        if series.kind == "Gauge":
            return sum(self.seen[key] for key in keys)
        return sum(self.seen[key] - self.before.get(key, 0.0) for key in keys)

    def reaches(self, look: Callable[[], object], expected: object) -> bool:
        """Return whether `look` gives the expected value in time; processes send in intervals."""

        def read_and_look() -> object:
            self.look()
            return look()

        return reaches(read_and_look, expected)


def reaches(look: Callable[[], object], expected: object) -> bool:
    """Return whether `look` gives the expected value in time; processes send in intervals."""
    deadline = time.monotonic() + _PATIENCE_S
    while look() != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    return time.monotonic() < deadline


@pytest.mark.slow
def test_series_are_exported_with_the_values_of_all_processes(ray_cluster: Workers):
    pytest.importorskip("opencensus", reason="Ray runs its metrics agent where ray[default] is installed")
    port = Port()
    port.begin()
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
    metrics.record_release(42, 600, 1_767_323_045.0)
    with pytest.raises(GatesRefused), metrics.count_failures():
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


def test_metrics_of_ray_in_charts_and_alerts_exist_in_this_version(ray_cluster: Workers):
    pytest.importorskip("opencensus", reason="Ray runs its metrics agent where ray[default] is installed")
    wanted = {name for name in names_used() if re.match(r"ray_(?!manta_)", name)}
    assert wanted == {"ray_node_mem_used", "ray_node_mem_total"}
    assert reaches(lambda: len(wanted & set(re.findall(r"^(\w+)\{", page(), re.MULTILINE))), len(wanted))


def test_without_ray_metrics_import_nothing_and_do_not_fail():
    program = (
        "import sys\nfrom pipeline.flows.workers import metrics\nmetrics.record_release(1, 2, "
        "3.0)\nmetrics.count_night('unchanged', 0)\n"
        "metrics.count_encoded(1, 2, {})\nprint('ray' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "False"


def test_metric_names_are_unique_and_valid_in_prometheus():
    series = [value for value in vars(metrics).values() if isinstance(value, metrics.MetricSeries)]
    names = [exported(metric) for metric in series]
    assert len(names) >= 12
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)
    assert all(re.fullmatch(r"[a-z_]+", label) for metric in series for label in metric.labels)
