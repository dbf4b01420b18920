"""Measure single queries of an open release, and one search as a process.

python -m tests.benchmarks.search ROOT --searches 5 --queries 300

ROOT has a release with one index file, such as that of the quickstart. A query is the beginning of a text of
the corpus. The time of its parts stands beside that of the encoder and of faiss alone, without Manta's
searcher; all are measured in turn.

A search as a process lasts from the start of Python to the printed answer. A cold one begins with an empty
file cache of the system; only root may empty it, and for other users the line is left out. A warm one follows
one that is not counted. The slowest imports of such a process are named.
"""

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np

from pipeline.index.search.search import OpenRelease, open_release
from tests.benchmarks.machine import machine, print_table, spread

_QUERY = "join two paths"
_K = 10
_WARM_UP = 20  # queries that are not counted
_IMPORTS = 12  # imports that are named


def main() -> None:
    """Measure cold and warm searches, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", metavar="ROOT")
    parser.add_argument("--searches", type=int, default=5, help="measured searches of each kind (default: 5)")
    parser.add_argument("--queries", type=int, default=300, help="single queries (default: 300)")
    arguments = parser.parse_args()
    print(machine())
    _compare_queries(arguments.root, arguments.queries)
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
    print_table("Slowest imports of a search", _imports(arguments.root), ["module", "ms with its imports"])


def _compare_queries(root: str, count: int) -> None:
    """Print the time of the parts of a query, and of encoder and faiss alone."""
    release = open_release(root)
    texts, alone = _texts(release, count + _WARM_UP), _faiss_alone(root, release)
    vectors, encoder = release.encode(texts), release._files._encoder
    assert encoder is not None
    found = [release.search(vector[None], _K) for vector in vectors]
    nearest = [alone(vector[None])[1][0] for vector in vectors]
    taken: dict[str, list[float]] = {}

    def measure(name: str, call: Callable[[], object]) -> None:
        start = time.perf_counter()
        call()
        taken.setdefault(name, []).append(1000 * (time.perf_counter() - start))

    for text, vector, rows in zip(texts, vectors, nearest, strict=True):
        measure("query, whole", lambda text=text: release.search(text, _K))  # type: ignore[misc]
        measure("query, tokenize", lambda text=text: encoder.count_tokens([text]))  # type: ignore[misc]
        measure("query, encode with tokenizing", lambda text=text: release.encode([text]))  # type: ignore[misc]
        measure("query, search with ids", lambda vector=vector: release.search(vector[None], _K))  # type: ignore[misc]
        measure("query, ids", lambda rows=rows: release.rows(rows))  # type: ignore[misc]
        measure("encoder alone", lambda text=text: encoder.encode([text], query=True))  # type: ignore[misc]
        measure("faiss alone", lambda vector=vector: alone(vector[None]))  # type: ignore[misc]
    times = {name: np.array(each[_WARM_UP:]) for name, each in taken.items()}
    times["encoder and faiss alone"] = times["encoder alone"] + times["faiss alone"]
    cells = [
        [name, f"{np.median(each):.2f}", f"{np.percentile(each, 99):.2f}"] for name, each in times.items()
    ]
    print_table(f"{count} queries of {release!r}, k={_K}", cells, ["part", "median, ms", "p99, ms"])
    ratio = np.median(times["query, whole"]) / np.median(times["encoder and faiss alone"])
    same = np.mean([len(table) == _K for table in found])
    print(
        f"\na query takes {ratio:.2f} times as long as encoder and faiss alone; {same:.0%} have {_K} answers"
    )


def _texts(release: OpenRelease, count: int) -> list[str]:
    """Return the first eight words of texts of the release."""
    near = release.search(_QUERY, k=count, texts=True)
    return [" ".join(text.split()[:8]) for text in near["text"].to_pylist()]


def _faiss_alone(root: str, release: OpenRelease) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Read the index of a release that has one file with faiss, and return its search."""
    manifest = release.manifest
    index = faiss.read_index(str(Path(root) / manifest.index.files[0].path))
    effort = manifest.index.settings.get("effort")
    if effort is not None and (ivf := faiss.try_extract_index_ivf(index)) is not None:
        ivf.nprobe = int(effort)
    return lambda vectors: index.search(vectors, _K)


def _imports(root: str) -> list[list[str]]:
    """Return the imports that take longest in a search, each with the milliseconds of all that it imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "manta", "search", root, _QUERY],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split("|") for line in done.stderr.splitlines() if line.startswith("import time:")]
    found = [(int(each[1]) / 1000, each[2].strip()) for each in lines if each[1].strip().isdigit()]
    packages = [(ms, name) for ms, name in found if "." not in name]
    return [[name, f"{ms:.0f}"] for ms, name in sorted(packages, reverse=True)[:_IMPORTS]]


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
