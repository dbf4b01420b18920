"""Prove on a GPU what tests on a CPU cannot: `python -m tests.gpu`.

    python -m tests.gpu
    python -m tests.gpu --device cpu --small speed memory

It needs neither Ray nor network, makes its own encoders, and prints a table for each part. Each part is a
process with a time limit: the parts that compare results run together, then those that measure time run one
after the other. All together end within nine minutes. If a part fails, its problems or its error follow its
table, the other parts run, and the exit code is 1. With --device cpu --small the same code runs on a CPU, in
a minute or two.
"""

import argparse
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from pipeline.cores import usable_cores
from tests.benchmarks.machine import machine, print_table
from tests.gpu.scale import Part, Scale

LIMITS_S = {
    "parity": 200,
    "bits": 200,
    "gradients": 200,
    "memory": 200,
    "speed": 110,
    "latency": 45,
    "files": 50,
    "training": 80,
    "translation": 70,
    "index": 75,
}
"""seconds that each part may take, by name"""
ALL_LIMIT_S = 525
"""seconds after which no part runs any more, so that all end within nine minutes on a slow machine too"""
TOGETHER = ("parity", "bits", "gradients", "memory")
"""parts that run at the same time, because they measure no times"""
_MODULES = {"latency": "speed"}
"""name of the module of a part, if it is another than that of the part"""


def part_of(name: str) -> Part:
    """Import the function of a part."""
    part: Part = getattr(importlib.import_module(f"tests.gpu.{_MODULES.get(name, name)}"), name)
    return part


def run_part(name: str, device: str, *, small: bool) -> int:
    """Run a part in this process, and print its table and problems. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="manta-gpu-") as folder:
        try:
            table = part_of(name)(Scale(device, small, Path(folder), name))
        except Exception:  # whatever it is, the part has failed
            print(f"\n{name} has failed:\n{traceback.format_exc()}")
            return 1
    print_table(f"{name}: {table.title}", table.rows, table.header)
    for problem in table.problems:
        print(f"problem: {problem}")
    return int(bool(table.problems))


def run_all(names: list[str], device: str, *, small: bool) -> int:
    """Run each part in a process of its own, and print what it prints. Returns the exit code."""
    running: set[subprocess.Popen[str]] = set()
    end = time.monotonic() + ALL_LIMIT_S
    together = [name for name in names if name in TOGETHER]
    others = [name for name in names if name not in TOGETHER]
    run = partial(_run_child, running=running, end=end, device=device, small=small)
    # more threads than cores wait for each other
    run_together = partial(run, threads=max(1, usable_cores() // max(1, len(together))))
    failed = []
    with ThreadPoolExecutor(len(TOGETHER)) as threads:
        try:
            for name, code in chain(threads.map(run_together, together), map(run, others)):
                failed += [name] * (code != 0)
        finally:  # after an interruption
            for child in list(running):
                os.killpg(child.pid, signal.SIGKILL)
    print(f"\n{len(names) - len(failed)} of {len(names)} parts passed")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


def _run_child(
    name: str,
    running: set[subprocess.Popen[str]],
    end: float,
    device: str,
    *,
    small: bool,
    threads: int | None = None,
) -> tuple[str, int]:
    """Run a part in a process with its limit, then print what it has printed. Returns name and exit code.

    The process is in `running` while it runs, at most until `end` on the monotonic clock. It computes with as
    many threads; None: as the environment says.
    """
    start = time.monotonic()
    limit_s = max(0.0, min(LIMITS_S[name], end - start))
    command = [sys.executable, "-m", "tests.gpu", "--device", device, "--alone", name] + ["--small"] * small
    environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )
    running.add(child)
    try:
        printed, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        printed = f"{child.communicate()[0]}\n{name} was stopped after its limit of {limit_s:.0f} s\n"
    running.discard(child)
    print(f"{printed}({name}: {time.monotonic() - start:.0f} s)", flush=True)
    return name, child.returncode


def describe(device: str) -> str:
    """Return the device, and the versions that matter."""
    name = machine() if device == "cpu" else torch.cuda.get_device_name()
    return f"{name}; torch {torch.__version__}; {time.strftime('%Y-%m-%d')}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(LIMITS_S)}; default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU computes in seconds")
    parser.add_argument("--alone", action="store_true", help="run one part in this process, without limit")
    given = parser.parse_args()
    if unknown := set(given.parts) - LIMITS_S.keys():
        parser.error(f"unknown part {', '.join(sorted(unknown))}; known: {', '.join(LIMITS_S)}")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU; to run the same code on a CPU, give --device cpu --small")
    if given.alone:
        return max(run_part(name, given.device, small=given.small) for name in given.parts)
    print(describe(given.device), flush=True)
    return run_all(given.parts or list(LIMITS_S), given.device, small=given.small)


if __name__ == "__main__":
    sys.exit(main())
