"""Measure one search as a process, from the start of Python to the printed answer.

python -m tests.benchmarks.search ROOT --searches 5

ROOT has a release, such as that of the quickstart. A cold search begins with an empty file cache of the
system; only root may empty it, and for other users the line is left out. A warm search follows one that is
not counted.
"""

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.machine import machine, print_table, spread

_QUERY = "join two paths"


def main() -> None:
    """Measure cold and warm searches, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", metavar="ROOT")
    parser.add_argument("--searches", type=int, default=5, help="measured searches of each kind (default: 5)")
    arguments = parser.parse_args()
    print(machine())
    measured = {}
    if _empty_cache():
        measured["cold"] = [_search_s(arguments.root) for _ in range(arguments.searches) if _empty_cache()]
    _search_s(arguments.root)
    measured["warm"] = [_search_s(arguments.root) for _ in range(arguments.searches)]
    rows = []
    for kind, pairs in measured.items():
        walls, cpus = zip(*pairs, strict=True)
        rows.append([kind, spread(walls), spread(cpus)])
    print_table("One search as a process", rows, ["files", "seconds", "CPU seconds"])


def _search_s(root: str) -> tuple[float, float]:
    """Return the wall seconds and CPU seconds of one search as a process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "manta", "search", root, _QUERY], stdout=subprocess.DEVNULL, check=True
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _empty_cache() -> bool:
    """Empty the system's file cache. Returns False if this process may not."""
    os.sync()
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return True
    return False


if __name__ == "__main__":
    main()
