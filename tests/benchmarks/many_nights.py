"""Measure time, memory, bytes and recall of many nights in a row, each with 1 % of the rows changed.

python -m tests.benchmarks.many_nights --rows 1000000 --nights 30

Rows are made up as in `growth`. At the end the live vectors are compared, bit for bit, with those of a first
night on the last corpus.
"""

import argparse
import hashlib
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import manta
from pipeline.flows.rows import LiveRows, placed_units
from pipeline.store.store import open_store
from tests.benchmarks.growth import Cost, night, write_corpus, write_words
from tests.benchmarks.machine import machine, print_table

_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Night:
    """Metrics of one night."""

    seconds: float
    cpu_s: float
    driver_mb: float
    worker_mb: float
    stored_mb: float
    """size of the files that the night added to the root"""
    recall: float
    index: str


def main(rows: int, nights: int) -> None:
    """Run the nights, print each, and compare the last one's vectors with those of a first night."""
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as folder:
        top = Path(folder)
        write_words(top / "words.vec")
        found = []
        for number in range(nights + 1):
            write_corpus(top / "corpus", rows, number)
            found.append(_measured(top, "releases"))
            print(f"night {number}: {found[-1]}", flush=True)
        _measured(top, "fresh")
        same = _digest(top / "releases") == _digest(top / "fresh")
    _print(rows, found[1:])
    print(f"\nLive vectors equal those of a first night on the last corpus, bit for bit: {same}")


def _measured(top: Path, root: str) -> Night:
    before = _files(top / root)
    arguments = [
        f"corpus.uri={top}/corpus",
        f"encoder.path={top}/words.vec",
        f"release.root={top}/{root}",
        "gates.recall_at_10=0.5",
    ]
    answer, stages = night(arguments)
    costs: Sequence[Cost] = list(stages.values())
    added = {path: size for path, size in _files(top / root).items() if path not in before}
    return Night(
        seconds=sum(cost.wall_s for cost in costs),
        cpu_s=sum(cost.cpu_s for cost in costs),
        driver_mb=max(cost.driver_mb for cost in costs),
        worker_mb=max(cost.worker_mb for cost in costs),
        stored_mb=sum(added.values()) / 1e6,
        recall=answer["gates"]["recall_at_10"]["value"],
        index=_index_choice(answer),
    )


def _files(root: Path) -> dict[str, int]:
    return {
        str(Path(folder, name)): Path(folder, name).stat().st_size
        for folder, _, names in os.walk(root)
        for name in names
    }


def _index_choice(answer: dict[str, Any]) -> str:
    return next(choice["chosen"] for choice in answer["decisions"] if choice["what"] == "index")


def _digest(root: Path) -> str:
    """Return the sha256 over ids and vectors of all live rows, in the order of their ids."""
    manifest = manta.open_release(root, verify=False).manifest
    source = LiveRows(open_store(root), manifest.space_id, "id", manifest.dead)
    units = placed_units(manifest)
    ids = pa.concat_tables(source.ids(units))["id"].combine_chunks()
    vectors = np.concatenate([vectors for _, vectors in source.batches(units)])
    order = np.argsort(ids.to_numpy(zero_copy_only=False))
    digest = hashlib.sha256(np.ascontiguousarray(vectors[order]).tobytes())
    digest.update("\n".join(ids.take(pa.array(order)).to_pylist()).encode())
    return digest.hexdigest()


def _print(rows: int, nights: Sequence[Night]) -> None:
    metrics: dict[str, Callable[[Night], float]] = {
        "seconds": lambda each: each.seconds,
        "CPU s": lambda each: each.cpu_s,
        "driver, private MB": lambda each: each.driver_mb,
        "largest worker, private MB": lambda each: each.worker_mb,
        "added to the root, MB": lambda each: each.stored_mb,
        "recall@10": lambda each: each.recall,
    }
    lines = []
    for name, metric in metrics.items():
        values = [metric(each) for each in nights]
        shown = [f"{value:,.4g}" for value in (values[0], statistics.median(values), values[-1])]
        lines.append((name, *shown, _sparkline(values)))
    title = f"{len(nights)} nights with 1 % of {rows:,} rows changed; {machine()}"
    print_table(title, lines, ("metric", "first", "median", "last", "by night, from 0 to the highest"))
    rebuilt = [str(number) for number, each in enumerate(nights, 1) if each.index == "built anew"]
    print(f"\nThe index was rebuilt on night {', '.join(rebuilt) or 'none'}.")


def _sparkline(values: Sequence[float]) -> str:
    highest = max(max(values), 1e-9)
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(len(_BLOCKS) * value / highest))] for value in values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--nights", type=int, default=30)
    given = parser.parse_args()
    main(given.rows, given.nights)
