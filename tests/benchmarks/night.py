"""Compare the encode job with the encoding engine alone, and measure the time and memory of a whole night.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.night job
    MANTA_EVAL_DATA=... python -m tests.benchmarks.night captions
    python -m tests.benchmarks.night generated --rows 2000000

`job`: Ray workers that read, encode and write, against one process that only encodes, in wall and in CPU
time; `--dtype` sets the type of both. `captions`: stages and peak memory of a night on 135,070 captions.
`generated`: the same on generated rows with a small random BERT.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.settings import Job
from tests.benchmarks.machine import machine, print_table, spread

_SAMPLE_EVERY_S = 0.25  # often enough for peaks of memory
_SAMPLE_CPU_EVERY_S = 1.0  # so that the sampler itself takes little of the time that is compared
_FEW_ROWS = 8
_WORDS = (
    "man",
    "blue",
    "shirt",
    "stands",
    "ladder",
    "cleans",
    "window",
    "dogs",
    "run",
    "girl",
    "reads",
    "book",
    "grass",
    "quick",
    "brown",
    "fox",
    "lazy",
    "river",
)
_LEADS, _ENDS = ("a", "the", "one"), ("again", "then", "near the river bank")


def captions() -> Path:
    found = os.environ.get("MANTA_EVAL_DATA")
    if not found:
        sys.exit("set MANTA_EVAL_DATA to the folder of the evaluation data")
    return Path(found, "captions", "shards")


# --- the encode job against the engine alone ---


class Timing(NamedTuple):
    """Seconds of a measured part: on the clock, and of all processes that were started for it."""

    wall: float
    cpu: float


def compare_job(pairs: int, rows: int, dtype: str, unit_rows: int, workers: int) -> None:
    """Measure in turn a process that only encodes, with as many threads as workers, and the job with workers.

    The CPU time of the job is that of its workers, without what they take to start and to encode a few rows.
    """
    engines, jobs, starts = [], [], []
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        loading_s = _run_job(Path(top, "first"), _FEW_ROWS, dtype, unit_rows, workers)[0].cpu
        for number in range(pairs):
            engines.append(_run_engine(rows, dtype, workers))
            job, ray_s = _run_job(Path(top, str(number)), rows, dtype, unit_rows, workers)
            job = Timing(job.wall, job.cpu - loading_s)
            jobs.append(job)
            starts.append(ray_s)
            print(f"pair {number + 1}: engine {engines[-1]}, job {job}; Ray {ray_s:.1f} s", flush=True)
            shutil.rmtree(Path(top, str(number)))
    walls = [engine.wall / job.wall for engine, job in zip(engines, jobs, strict=True)]
    started = [engine.wall / (job.wall + ray) for engine, job, ray in zip(engines, jobs, starts, strict=True)]
    cpus = [engine.cpu / job.cpu for engine, job in zip(engines, jobs, strict=True)]
    lines = [
        ("engine alone, one process", *_seconds(engines), "", ""),
        ("encode job: Ray workers, read, write, moments", *_seconds(jobs), spread(walls), spread(cpus)),
        ("the same with starting Ray", "", "", spread(started), ""),
    ]
    print_table(
        f"{rows:,} captions, {dtype}, units of {unit_rows:,} rows, {workers} workers or threads, {pairs} "
        f"interleaved pairs; {machine()}",
        lines,
        ("", "seconds", "CPU seconds", "speed against the engine", "of CPU time"),
    )


def _seconds(timings: list[Timing]) -> tuple[str, str]:
    return spread([each.wall for each in timings], ".1f"), spread([each.cpu for each in timings], ".1f")


def _run_engine(rows: int, dtype: str, threads: int) -> Timing:
    """Return the time of encoding alone, measured in a new process after the first buffers."""
    options = ("--rows", str(rows), "--dtype", dtype, "--workers", str(threads))
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.night", "engine", *options],
        check=True,
        capture_output=True,
        text=True,
        env=_threads(threads),
    )
    return Timing(*map(float, done.stdout.split()))


def engine(rows: int, dtype: str, threads: int) -> None:
    """Encode captions in this process and print the seconds, and the CPU seconds."""
    from pipeline.models.inference.encoder import load_encoder
    from pipeline.settings import EncoderSettings, EncodeSettings

    encode = EncodeSettings.model_validate({"threads": threads, "dtype": dtype})
    encoder = load_encoder(EncoderSettings(), encode, "cpu")
    table = pa.concat_tables(
        [pq.read_table(file, columns=["text"]) for file in sorted(captions().glob("*.parquet"))]
    ).slice(0, rows)
    encoder.encode(table["text"].to_pylist()[:256])
    start, cpu = time.perf_counter(), time.process_time()
    done = sum(
        len(encoded.vectors)
        for encoded in encoder.encode_stream([batch["text"] for batch in table.to_batches(2_048)])
    )
    assert done == len(table), "rows are missing"
    print(time.perf_counter() - start, time.process_time() - cpu)


def _run_job(root: Path, rows: int, dtype: str, unit_rows: int, workers: int) -> tuple[Timing, float]:
    """Run `manta encode`. Returns the time of its encode stage, and the seconds to start Ray."""
    arguments = [
        f"corpus.uri={captions()}",
        f"corpus.max_rows={rows}",
        f"encode.dtype={dtype}",
        f"encode.unit_rows={unit_rows}",
        f"cluster.workers={workers}",
        f"release.root={root}",
    ]
    job = subprocess.Popen(
        [sys.executable, "-m", "jobs.encode", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=_threads(1),
    )
    sampler = MemorySampler(job.pid, _SAMPLE_CPU_EVERY_S)
    answer = job.communicate()[0]
    sampler.stop()
    seconds = json.loads(answer)["seconds"]
    return Timing(seconds["encode"], sum(sampler.encode_cpu_s.values())), seconds["cluster"]


def _threads(count: int) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(count)}


# --- a whole night ---


class MemorySampler:
    """Samples the memory of a process and of its descendants, in a thread.

    `peaks` has the peak resident and private bytes by kind of process; private is resident without shared
    memory such as mapped files. `encode_cpu_s` has the CPU seconds of each encode worker, by process id.

    Args:
        every_s: time between two samples.
    """

    def __init__(self, pid: int, every_s: float = _SAMPLE_EVERY_S) -> None:
        self._every_s = every_s
        self.peaks: dict[str, tuple[int, int]] = {}
        self.encode_cpu_s: dict[int, float] = {}
        self._root, self._stopped = psutil.Process(pid), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, tuple[int, int]]:
        self._stopped.set()
        self._thread.join()
        return self.peaks

    def _watch(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                for process in [self._root, *self._root.children(recursive=True)]:
                    self._record(process)
            except psutil.NoSuchProcess:
                continue

    def _record(self, process: psutil.Process) -> None:
        try:
            name, memory = " ".join(process.cmdline()[:1]), process.memory_info()
            times = process.cpu_times()
        except psutil.Error:
            return
        kind = (
            "driver"
            if process == self._root
            else "encode worker"
            if "MapWorker" in name
            else "task"
            if name.startswith("ray::")
            else None
        )
        if kind == "encode worker":
            self.encode_cpu_s[process.pid] = times.user + times.system
        if kind:
            resident, private = self.peaks.get(kind, (0, 0))
            self.peaks[kind] = (max(resident, memory.rss), max(private, memory.rss - memory.shared))


def whole_night(title: str, job: Job, arguments: list[str]) -> None:
    """Run `manta nightly` in a process, and print its stages and peak memory."""
    start = time.perf_counter()
    night = subprocess.Popen(
        [sys.executable, "-m", "jobs.nightly", "--json", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=_threads(1),
    )
    memory = MemorySampler(night.pid)
    answer = json.loads(night.communicate()[0])
    wall, peaks = time.perf_counter() - start, memory.stop()
    if answer["status"] != "published":
        sys.exit(f"the night has not published a release: {answer}")
    rows = answer["rows"]
    stages = [
        (name, f"{seconds:.1f}", f"{rows / seconds:,.0f}")
        for name, seconds in answer["seconds"].items()
        if seconds >= 0.05
    ]
    print_table(
        f"{title}: {rows:,} rows, {answer['index']['factory']}; {machine()}",
        [*stages, ("all, as a process", f"{wall:.1f}", "")],
        ("stage", "seconds", "rows/s"),
    )
    lines = [
        (kind, f"{resident / 1e6:,.0f}", f"{private / 1e6:,.0f}")
        for kind, (resident, private) in sorted(peaks.items())
    ]
    print_table("Peak memory", lines, ("process", "resident MB", "private MB"))
    recall, files = answer["gates"]["recall_at_10"]["value"], answer["index"]["files"]
    print(
        f"\nrecall@10 {recall:.4f}, index {sum(file['bytes'] for file in files) / 1e6:,.0f} MB, "
        f"unit_rows {job.encode.unit_rows:,}"
    )


def captions_night(rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        arguments = [
            f"corpus.uri={captions()}",
            f"corpus.max_rows={rows}",
            "encode.unit_rows=4096",
            f"release.root={top}/releases",
        ]
        whole_night(
            "A night on captions with all-MiniLM-L6-v2", load_settings(Job, None, tuple(arguments)), arguments
        )


def generated_night(rows: int) -> None:
    from tests.models.folders import save_folder

    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        encoder, corpus = Path(top, "encoder"), Path(top, "corpus")
        save_folder(encoder, "bert")
        corpus.mkdir()
        for number, table in enumerate(generate_rows(rows)):
            pq.write_table(table, corpus / f"part-{number:03d}.parquet")
        arguments = [
            f"corpus.uri={corpus}",
            f"encoder.path={encoder}",
            f"release.root={top}/releases",
            "gates.recall_at_10=0.9",
        ]
        whole_night(
            "A night on generated rows with a BERT of 3 layers and width 48",
            load_settings(Job, None, tuple(arguments)),
            arguments,
        )


def generate_rows(rows: int, file_rows: int = 250_000) -> Iterator[pa.Table]:
    """Generate tables with the columns id and text, of random words from a small vocabulary."""
    rng = np.random.default_rng(0)
    words = np.array(_WORDS)
    for start in range(0, rows, file_rows):
        count = min(file_rows, rows - start)
        lengths = rng.integers(6, 15, count)
        picked = np.split(words[rng.integers(0, len(words), lengths.sum())], np.cumsum(lengths)[:-1])
        leads, ends = rng.choice(_LEADS, count), rng.choice(_ENDS, count)
        texts = [
            f"{lead} {' '.join(middle)} {end} {start + row}"
            for row, (lead, middle, end) in enumerate(zip(leads, picked, ends, strict=True))
        ]
        yield pa.table({"id": np.arange(start, start + count), "text": texts})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("job", "engine", "captions", "generated"))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--unit-rows", type=int, default=4096, help="encode.unit_rows of `job`")
    parser.add_argument("--workers", type=int, default=2, help="workers of `job`, each with one thread")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "int8"), default="float32")
    options = parser.parse_args()
    if options.what == "generated":
        generated_night(options.rows or 2_000_000)
    elif options.what == "captions":
        captions_night(options.rows or 135_070)
    elif options.what == "engine":
        engine(options.rows, options.dtype, options.workers)
    else:
        compare_job(options.pairs, options.rows or 135_070, options.dtype, options.unit_rows, options.workers)


if __name__ == "__main__":
    main()
