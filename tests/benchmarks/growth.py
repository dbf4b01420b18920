"""Measure the growth of a night's cost with its rows: CPU time, memory, scratch, bytes, time of every stage.

python -m tests.benchmarks.growth --rows 10000 100000 1000000
python -m tests.benchmarks.growth --rows 30000000 --nights 1 --folder /disk/growth

Made-up rows are encoded by averages of 16-dimensional word vectors, so that the cost of everything except
encoding is visible. For each stage the exponent b of the fit `cost ~ rows^b` is printed: 1 is linear, 0 is
independent of the rows. Scratch is the size of temporary files: those of tasks below the root, and all, Ray's
too, in the folder for temporary files. The driver is the process of the command. If less than 1 GiB of the
corpus changed, it runs the tasks of ingest itself, so that its memory includes that of a task, 16 MiB of rows
or a unit.

With `--folder`, a command that was interrupted goes on when it is repeated, as a night does: its costs are
added to those of the tries before. With `--nights`, nights follow, and before each 1 % of the rows get
another text. `--until ingest` ends a night when that stage is over.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.files.base import PARTIAL
from tests.benchmarks.machine import machine, print_table

_ROOT = "release.root"
_SAMPLED_S = 0.1
_KEPT_S = 10.0
_WORDS, _DIM = 5_000, 16
_FILE_ROWS = 250_000
_REPEATED = 0.01  # proportion of texts that repeat another
_CHANGED = 0.01  # proportion of rows with another text on each later night
_FEWEST_SECONDS = 0.5  # a stage with less CPU time at the largest size is not fitted


@dataclass
class Cost:
    """Costs of one stage, or of a night."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    driver_mb: float = 0.0
    """peak of the driver's private memory"""
    worker_mb: float = 0.0
    """peak of the largest worker's private memory"""
    scratch_mb: float = 0.0
    """peak of the temporary files of all processes"""
    read_mb: float = 0.0
    written_mb: float = 0.0


@dataclass
class Meter:
    """Samples the processes and temporary files of a night and books their costs to the stage that runs."""

    pid: int
    root: Path
    temporary: Path
    stages: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    kept: Path | None = None
    """file that has the costs of earlier tries, and gets the sums"""
    until: str = ""
    """stage after which the night is ended; empty: none"""
    _stage: str = "start"
    _known: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.kept is not None and self.kept.exists():
            self.stages.update(_read_costs(self.kept))

    def follow(self, lines: Iterator[str]) -> list[str]:
        """Sample until the events end. Returns the last lines that are not events."""
        over = threading.Event()
        sampler = threading.Thread(target=self._run, args=(over,), daemon=True)
        sampler.start()
        others: list[str] = []
        for line in lines:
            try:
                event = json.loads(line)["event"]
            except (ValueError, KeyError, TypeError):
                others = [*others[-20:], line]
                continue
            name, found, rest = event.partition(": ")
            if found and rest.startswith("starts"):
                self._sample()
                if self._stage == self.until:
                    os.kill(self.pid, signal.SIGTERM)
                self._stage = name
        over.set()
        sampler.join()
        self._keep()
        return others

    def _run(self, over: threading.Event) -> None:
        written = time.monotonic()
        while not over.wait(_SAMPLED_S):
            self._sample()
            if time.monotonic() - written > _KEPT_S:
                self._keep()
                written = time.monotonic()

    def _keep(self) -> None:
        if self.kept is not None:
            written = self.kept.with_suffix(".new")
            written.write_text(json.dumps({name: vars(cost) for name, cost in self.stages.items()}))
            written.replace(self.kept)

    def _sample(self) -> None:
        now, cost = time.monotonic(), self.stages[self._stage]
        cost.wall_s, self._since = cost.wall_s + now - self._since, now
        scratch = _bytes_below(self.temporary) + _bytes_below(self.root, f"{os.sep}{PARTIAL}")
        cost.scratch_mb = max(cost.scratch_mb, scratch / 1e6)
        try:
            driver = psutil.Process(self.pid)
            processes = [driver, *driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in processes:
            try:
                self._book(process, cost)
            except psutil.Error:
                continue

    def _book(self, process: psutil.Process, cost: Cost) -> None:
        with process.oneshot():
            times, memory, disk = process.cpu_times(), process.memory_info(), process.io_counters()
        now = times.user + times.system, disk.read_chars, disk.write_chars
        before = self._known.get(process.pid, (0.0, 0, 0))
        self._known[process.pid] = now
        cost.cpu_s += now[0] - before[0]
        cost.read_mb += (now[1] - before[1]) / 1e6
        cost.written_mb += (now[2] - before[2]) / 1e6
        private_mb = (memory.rss - memory.shared) / 1e6
        if process.pid == self.pid:
            cost.driver_mb = max(cost.driver_mb, private_mb)
        elif _works(process):
            cost.worker_mb = max(cost.worker_mb, private_mb)


def _read_costs(file: Path) -> dict[str, Cost]:
    return {name: Cost(**cost) for name, cost in json.loads(file.read_text()).items()}


def _bytes_below(top: Path, part: str = "") -> int:
    """Return the size of the files below `top` whose path has `part`; those just removed count as none."""
    size = 0
    for folder, _, names in os.walk(top):
        for path in (os.path.join(folder, name) for name in names):
            if part in path:
                with contextlib.suppress(FileNotFoundError):
                    size += os.lstat(path).st_size
    return size


def _works(process: psutil.Process) -> bool:
    """Return whether the process executes tasks of the night, unlike the services of Ray."""
    command = " ".join(process.cmdline())
    return command.startswith("ray::") or "multiprocessing" in command


def write_words(file: Path) -> None:
    """Write word vectors in the format of word2vec."""
    vectors = np.random.default_rng(1).normal(size=(_WORDS, _DIM))
    lines = (f"w{number} {' '.join(f'{value:.4f}' for value in row)}" for number, row in enumerate(vectors))
    file.write_text("\n".join([f"{_WORDS} {_DIM}", *lines, ""]))


def write_corpus(folder: Path, rows: int, nights: int = 0) -> None:
    """Write rows of id and text: 4 to 12 random words; one text in a hundred repeats another.

    Args:
        nights: number of later nights, on each of which 1 % of the rows, in all files, got another text.
    """
    rng, words = np.random.default_rng(0), np.array([f"w{number}" for number in range(_WORDS)])
    folder.mkdir(exist_ok=True)
    for number, start in enumerate(range(0, rows, _FILE_ROWS)):
        count = min(_FILE_ROWS, rows - start)
        lengths = rng.integers(4, 13, count)
        picked = words[rng.integers(0, _WORDS, lengths.sum())]
        texts = [" ".join(some) for some in np.split(picked, lengths.cumsum()[:-1])]
        for row in np.flatnonzero(rng.random(count) < _REPEATED).tolist():
            texts[row] = texts[0]
        for night in range(1, nights + 1):
            edits = np.random.default_rng([night, number])
            for row in np.flatnonzero(edits.random(count) < _CHANGED).tolist():
                texts[row] = f"w{edits.integers(_WORDS)} {texts[row].split(maxsplit=1)[-1]}"
        table = pa.table({"id": [f"row-{row:010d}" for row in range(start, start + count)], "text": texts})
        pq.write_table(table, folder / f"part-{number:05d}.parquet")


def environment() -> dict[str, str]:
    """Return the environment of a night whose events are read: JSON lines, one thread for each worker."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MANTA_LOG": "json"}


def night(arguments: Sequence[str]) -> tuple[dict[str, Any], dict[str, Cost]]:
    """Run one `manta nightly` in a process of its own. Returns its answer and the costs of its stages.

    Args:
        arguments: settings; release.root, a local folder, is one of them.
    """
    return run_command(["jobs.nightly", *arguments], _root(arguments))


def _root(arguments: Sequence[str]) -> Path:
    return Path(
        next(value for name, _, value in (each.partition("=") for each in arguments) if name == _ROOT)
    )


def run_command(
    arguments: Sequence[str], root: Path, kept: Path | None = None, until: str = ""
) -> tuple[dict[str, Any], dict[str, Cost]]:
    """Run a module with arguments in a process of its own. Returns its answer and the costs of its stages.

    Args:
        kept: file with the costs of earlier tries of this command, which gets the sums.
        until: stage after which the command is ended; its answer is empty then.
    """
    command = [sys.executable, "-m", *arguments, "--json"]
    with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryDirectory(prefix="manta-") as temporary:
        variables = environment() | {"TMPDIR": temporary}
        process = subprocess.Popen(command, stdout=answer, stderr=subprocess.PIPE, text=True, env=variables)
        assert process.stderr is not None
        meter = Meter(process.pid, root, Path(temporary), kept=kept, until=until)
        last = meter.follow(iter(process.stderr))
        if process.wait():
            if until in meter.stages:
                return {}, dict(meter.stages)
            sys.exit("".join(last))
        answer.seek(0)
        return json.load(answer), dict(meter.stages)


def measure(given: argparse.Namespace) -> None:
    """Measure the first night of each size and those that follow, and fit the exponents of the first ones."""
    found = []
    for rows in given.rows:
        with _folder(given.folder, rows) as top:
            nights = [_night_in(top, rows, number, given) for number in range(1 + given.nights)]
        found.append(nights[0])
        for number, stages in enumerate(nights):
            _print_stages(rows, number, stages)
    _print_exponents(given.rows, found)


@contextlib.contextmanager
def _folder(kept: Path | None, rows: int) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
            yield Path(top)
    else:
        top = kept / str(rows)
        top.mkdir(parents=True, exist_ok=True)
        yield top


def _night_in(top: Path, rows: int, number: int, given: argparse.Namespace) -> dict[str, Cost]:
    """Return the costs of a night by stage, and run it if an earlier try has not ended it."""
    costs, done = top / f"costs-{number}.json", top / f"done-{number}"
    if not done.exists():
        print(f"{rows:,} rows, night {number}", flush=True)
        corpus = top / "corpus" / f"written-{number}"
        if not corpus.exists():
            write_words(top / "words.vec")
            write_corpus(top / "corpus", rows, number)
            corpus.touch()
        arguments = [
            f"corpus.uri={top}/corpus/*.parquet",
            f"encoder.path={top}/words.vec",
            f"{_ROOT}={top}/releases",
            f"index.kind={given.kind}",
            "gates.recall_at_10=0.5",  # random vectors: the cost is measured, not the recall
        ]
        run_command(["jobs.nightly", *arguments], _root(arguments), costs, given.until)
        done.touch()
    return _read_costs(costs)


def _print_stages(rows: int, number: int, stages: dict[str, Cost]) -> None:
    lines = [
        (name, *(f"{value:,.1f}" for value in vars(cost).values()), f"{1e6 * cost.cpu_s / rows:.2f}")
        for name, cost in stages.items()
    ]
    header = (
        "stage",
        "CPU s",
        "wall s",
        "driver MB",
        "worker MB",
        "scratch MB",
        "read MB",
        "written MB",
        "CPU µs a row",
    )
    print_table(f"{rows:,} rows, night {number}; {machine()}", lines, header)


def _print_exponents(sizes: Sequence[int], found: Sequence[dict[str, Cost]]) -> None:
    if len(sizes) < 2:
        return
    lines = []
    for name in [*found[-1], "all"]:
        nights = [_sum(stages) if name == "all" else stages.get(name, Cost()) for stages in found]
        if nights[-1].cpu_s >= _FEWEST_SECONDS:
            metrics = ("cpu_s", "driver_mb", "worker_mb", "scratch_mb", "read_mb", "written_mb")
            exponents = [exponent(sizes, [getattr(each, metric) for each in nights]) for metric in metrics]
            lines.append((name, *exponents))
    header = ("stage", "CPU", "driver memory", "worker memory", "scratch", "read", "written")
    print_table(f"Exponents of rows^b from {sizes[0]:,} to {sizes[-1]:,} rows", lines, header)


def _sum(stages: dict[str, Cost]) -> Cost:
    costs = list(stages.values())
    sums = {
        name: sum(getattr(cost, name) for cost in costs)
        for name in ("cpu_s", "wall_s", "read_mb", "written_mb")
    }
    peaks = {
        name: max(getattr(cost, name) for cost in costs) for name in ("driver_mb", "worker_mb", "scratch_mb")
    }
    return Cost(**sums, **peaks)


def exponent(sizes: Sequence[int], values: Sequence[float]) -> str:
    """Return the slope of log(cost) over log(size), fitted to the sizes that have a cost."""
    positive = [(size, value) for size, value in zip(sizes, values, strict=True) if value > 0]
    if len(positive) < 2:
        return ""
    x, y = np.log(np.array(positive)).T
    return f"{np.polyfit(x, y, 1)[0]:.2f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--kind", default="auto", help="index.kind")
    parser.add_argument("--nights", type=int, default=0, help="nights after the first, with 1 % changed rows")
    parser.add_argument("--until", default="", help="stage after which each night is ended")
    parser.add_argument(
        "--folder", type=Path, help="folder that is kept, in which a repeated command goes on"
    )
    measure(parser.parse_args())
