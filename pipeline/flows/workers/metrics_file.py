"""Write the metrics of a night to a file for the textfile collector of Prometheus's node exporter.

The names are those that Ray's agent would export, so dashboard and alerts need no change.
`prometheus_client.write_to_textfile` would not be shorter: values come from `metrics.listeners` in either
case. Its counters also write series named `_created`, and the umask decides who may read its file.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.flows.workers import metrics
from pipeline.flows.workers.metrics import NIGHTS, MetricSeries
from pipeline.log import announce, ends_by
from pipeline.store.files.disk import translate_disk_errors

_Labels = tuple[tuple[str, str], ...]


class RecordedMetrics:
    """The values that one process recorded."""

    def __init__(self) -> None:
        self._values: dict[MetricSeries, dict[_Labels, float]] = {}

    def record(self, series: MetricSeries, value: float, labels: Mapping[str, str]) -> None:
        """Add to a counter, or set a gauge."""
        values, key = self._values.setdefault(series, {}), tuple(sorted(labels.items()))
        values[key] = value + (values.get(key, 0.0) if series.kind == "Counter" else 0.0)

    def has(self, series: MetricSeries) -> bool:
        """Return whether a value of the series was recorded."""
        return series in self._values

    def text(self) -> str:
        """Return the values in the text format of Prometheus."""
        lines = []
        for series, values in self._values.items():
            name = f"ray_{series.name}" + ("_total" if series.kind == "Counter" else "")
            lines += [f"# HELP {name} {series.description}", f"# TYPE {name} {series.kind.lower()}"]
            for labels, value in values.items():
                pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
                lines.append(f"{name}{{{pairs}}} {value!r}" if pairs else f"{name} {value!r}")
        return "\n".join(lines) + "\n"


@contextlib.contextmanager
def metrics_written_to(path: str | None) -> Iterator[None]:
    """Write the metrics that the block records to a file when it ends, whatever error ends it.

    Args:
        path: the file, which is replaced as a whole; None records nothing.

    Raises:
        ConfigError: the folder of the file is not writable.
    """
    if path is None:
        yield
        return
    recorded, file = RecordedMetrics(), Path(os.path.expanduser(path))  # the name of a user may be unknown

    def write(error: BaseException | None) -> None:
        if error is not None and not recorded.has(NIGHTS):  # the night failed before it had workers
            metrics.count_failed_night(error)
        _replace(file, recorded.text())

    metrics.listeners.append(recorded.record)
    try:
        with ends_by(write):  # a thread may end the process, as for a lost cluster
            yield
    except BaseException as error:
        try:
            write(error)
        except Exception as failure:  # the night ends with its own error
            announce(f"the metrics are not written: {failure}")
        raise
    else:
        write(None)
    finally:
        metrics.listeners.remove(recorded.record)


@contextlib.contextmanager
def metrics_replaced_in(path: str) -> Iterator[None]:
    """Replace the metrics that the block records in the file that a night wrote; others stay in it.

    Raises:
        ConfigError: the folder of the file is not writable.
    """
    recorded, file = RecordedMetrics(), Path(os.path.expanduser(path))
    metrics.listeners.append(recorded.record)
    try:
        yield
    finally:
        metrics.listeners.remove(recorded.record)
    new = recorded.text()
    names = {line.split()[2] for line in new.splitlines() if line.startswith("# TYPE")}
    old = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    kept = [
        line
        for line in old
        if re.split(r"[{ ]", line.removeprefix("# HELP ").removeprefix("# TYPE "))[0] not in names
    ]
    _replace(file, "".join(f"{line}\n" for line in kept) + new)


def _replace(file: Path, text: str) -> None:
    # The collector reads names that end in .prom, so it never reads an incomplete file.
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with translate_disk_errors(str(file.parent)):
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o644)
        os.replace(temporary, file)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
