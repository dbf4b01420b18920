"""The metrics of a night without Ray are in a file that the parser of Prometheus reads, however it ends."""

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from jobs.boundary import Stopped
from jobs.cli import app
from pipeline.errors import ConfigError, DataError, GatesRefused, ModelError, TransientError
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers import metrics
from pipeline.flows.workers.metrics_file import metrics_written_to
from pipeline.log import Stages, end_process, ends_by
from pipeline.settings import Job
from pipeline.stats.drift import drift
from pipeline.stats.moments import Moments
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.infra.queries import exported

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(file: Path) -> Samples:
    """Read a file with Prometheus's own parser."""
    families = text_string_to_metric_families(file.read_text())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(found: Samples, series: metrics.MetricSeries, **labels: str) -> float | None:
    return found.get((exported(series), frozenset(labels.items())))


def test_labels_of_any_text_are_escaped_and_counters_add_up(tmp_path: Path):
    file, odd = tmp_path / "new" / "manta.prom", 'a "b" \\ c\nd = {e}, é'
    with metrics_written_to(str(file)):
        metrics.count_quarantined({f"quarantined_{odd}": 3, "quarantined_empty": 1, "rows": 9})
        metrics.count_quarantined({f"quarantined_{odd}": 4})
        metrics.record_release(7, 100, 1_790_000_000.25)
        metrics.record_release(8, 90, 1_790_000_001.25)
    found = samples(file)
    assert value(found, metrics.QUARANTINED, reason=odd) == 7
    assert value(found, metrics.QUARANTINED, reason="empty") == 1
    assert value(found, metrics.RELEASE) == 8
    assert value(found, metrics.PUBLISHED) == 1_790_000_001.25
    assert [each.name for each in file.parent.iterdir()] == ["manta.prom"]
    metrics.record_release(9, 1, 1.0)
    assert samples(file) == found, "nothing is recorded after the block"


def test_a_failure_is_counted_once_with_its_exit_code(tmp_path: Path):
    file = tmp_path / "manta.prom"
    with pytest.raises(DataError), metrics_written_to(str(file)):
        raise DataError("a", "b", "c", "d")
    assert samples(file) == {
        (exported(metrics.NIGHTS), frozenset({("outcome", "failed"), ("exit_code", "3")})): 1
    }
    with pytest.raises(GatesRefused), metrics_written_to(str(file)), metrics.count_failures():
        raise GatesRefused("a", ("b",))
    assert samples(file) == {
        (exported(metrics.NIGHTS), frozenset({("outcome", "refused"), ("exit_code", "5")})): 1
    }


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (ConfigError("a", "b", "c", "d"), "failed", 2),
        (ModelError("a", "b", "c", "d"), "failed", 4),
        (ValueError("a defect"), "failed", 70),
        (TransientError("a", "b", "c", "d"), "failed", 75),
        (OSError(errno.ENOSPC, "no space"), "failed", 75),
        (MemoryError(), "failed", 75),
        (Stopped(), "stopped", 75),
        (KeyboardInterrupt(), "stopped", 130),
    ],
)
def test_every_end_is_counted_with_the_exit_code_of_the_command(
    tmp_path: Path, error: BaseException, outcome: str, code: int
):
    file = tmp_path / "manta.prom"
    expected = {(exported(metrics.NIGHTS), frozenset({("outcome", outcome), ("exit_code", str(code))})): 1}
    for ray in (contextlib.nullcontext(), metrics.count_failures()):
        with pytest.raises(type(error)), metrics_written_to(str(file)), ray:
            raise error
        assert samples(file) == expected
        file.unlink()
    ended: list[Samples] = []
    with ends_by(lambda _: ended.append(samples(file))), metrics_written_to(str(file)):
        end_process(error)  # as a thread does when the cluster is lost
    assert ended == [expected]


def test_a_file_that_cannot_be_written_hides_no_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "file").touch()
    error, ended = TransientError("a", "b", "c", "d"), list[Exception]()
    for path in (tmp_path / "file" / "x.prom", Path("/proc/nowhere/x.prom")):
        with pytest.raises(TransientError), ends_by(ended.append), metrics_written_to(str(path)):
            _end_and_raise(error)
        lines = capfd.readouterr().err.splitlines()
        assert [str(path.parent) in line or "/proc/nowhere" in line for line in lines] == [True, True], lines
    assert ended == [error, error]


def _end_and_raise(error: Exception) -> None:
    end_process(error)
    raise error


def test_a_night_within_the_handling_of_an_error_has_not_failed(tmp_path: Path):
    file = tmp_path / "manta.prom"
    try:
        raise TransientError("a", "b", "c", "d")
    except TransientError:
        with metrics_written_to(str(file)), metrics.count_failures():
            metrics.count_night("published")
    assert samples(file) == {
        (exported(metrics.NIGHTS), frozenset({("outcome", "published"), ("exit_code", "0")})): 1
    }


@pytest.mark.usefixtures("cluster")
def test_a_night_whose_root_cannot_be_opened_is_counted(make_job: Callable[..., Job], tmp_path: Path):
    file = tmp_path / "manta.prom"
    (tmp_path / "releases").touch()
    with pytest.raises(ConfigError):
        nightly(make_job(f"release.metrics_file={file}"), Stages())
    assert value(samples(file), metrics.NIGHTS, outcome="failed", exit_code="2") == 1


@pytest.mark.parametrize("wrong", ["encode.unit_rows=none", "enocde.unit_rows=5", "unit_rows"])
@pytest.mark.parametrize("is_in_file", [False, True])
def test_a_night_whose_settings_are_refused_is_counted(tmp_path: Path, wrong: str, is_in_file: bool):
    file, config = tmp_path / "manta.prom", tmp_path / "night.yaml"
    config.write_text(f"release: {{metrics_file: {file}}}\n" if is_in_file else "corpus: [")
    written = [] if is_in_file else [f"release.metrics_file={file}"]
    command = ["nightly", "--config", str(config), wrong, *written]
    assert CliRunner().invoke(app, [*command, "--print-config"]).exit_code == 2
    assert not file.exists()
    assert CliRunner().invoke(app, command).exit_code == 2
    assert value(samples(file), metrics.NIGHTS, outcome="failed", exit_code="2") == 1


def test_a_folder_that_is_a_file_is_explained(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="a writable folder"), metrics_written_to(str(tmp_path / "file/x")):
        pass


def moment_files(releases: Releases) -> list[str]:
    """Return the files of the moments of the first two releases."""
    files = [releases.get(number).moments for number in (1, 2)]
    return [file.path for file in files if file is not None]


@pytest.mark.usefixtures("cluster")
def test_nights_without_ray_export_outcome_release_gates_changes_and_drift(
    make_job: Callable[..., Job], tmp_path: Path
):
    file = tmp_path / "manta.prom"
    overrides = (f"release.metrics_file={file}", "whiten.mode=on", "whiten.max_drift=0.9")

    def run(*more: str) -> Samples:
        nightly(make_job(*overrides, *more), Stages())
        return samples(file)

    first = run()
    releases = Releases(open_store(tmp_path / "releases"))
    gates = releases.get(1).gates
    assert value(first, metrics.NIGHTS, outcome="published", exit_code="0") == 1
    assert value(first, metrics.GATE_VALUE, gate="recall_at_10") == gates["recall_at_10"].value
    assert value(first, metrics.CHANGED_ROWS, change="new") == 400
    assert value(first, metrics.DRIFT) is None
    part = tmp_path / "corpus" / "part-0.parquet"
    pq.write_table(pq.read_table(part).slice(10), part)
    second = run()
    contents = [(tmp_path / "releases" / path).read_bytes() for path in moment_files(releases)]
    moments = map(Moments.from_bytes, contents)
    assert value(second, metrics.DRIFT) == pytest.approx(drift(*moments).distance)
    assert value(second, metrics.CHANGED_ROWS, change="deleted") == 10
    assert value(second, metrics.LIVE_ROWS) == 390
    unchanged = run()
    assert value(unchanged, metrics.NIGHTS, outcome="unchanged", exit_code="0") == 1
    for series in (metrics.RELEASE, metrics.LIVE_ROWS):
        assert value(unchanged, series) == value(second, series)
    committed = value(unchanged, metrics.PUBLISHED)
    assert committed is not None
    assert abs(committed - (value(second, metrics.PUBLISHED) or 0)) <= 1.5, "commits record whole seconds"
    pq.write_table(pq.read_table(part).slice(5), part)
    with pytest.raises(GatesRefused):
        run("gates.max_size_gib=1e-9")
    refused = samples(file)
    assert value(refused, metrics.NIGHTS, outcome="refused", exit_code="5") == 1
    assert value(refused, metrics.GATE_PASSED, gate="size_gib") == 0
