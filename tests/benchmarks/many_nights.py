"""Measure time, memory, bytes and recall of many nights in a row, each with 1 % of the rows changed.

python -m tests.benchmarks.many_nights --rows 1000000 --nights 30 --chart many_nights.svg

Rows are made up as in `growth`. The chart has one panel for each metric. At the end the live vectors are
compared, bit for bit, with those of a first night on the last corpus.
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
from pipeline.charts.frame import HEIGHT, WIDTH
from pipeline.flows.rows import LiveRows, units_by_ordinal
from pipeline.report.releases import history_chart
from pipeline.store.files.open_store import open_store
from tests.benchmarks.growth import Cost, night, write_corpus, write_words
from tests.benchmarks.machine import machine, print_table

_PANEL = 40, 20, 280  # pixels between panels, and above the first, and the height of one with its heading
_STYLE = """
svg { font: 11.5px system-ui, sans-serif; }
.paper { fill: #fdfdfc; } text { fill: #5a6773; }
text.heading { fill: #14202b; font-size: 14px; font-weight: 620; }
text.end { text-anchor: end; } text.middle { text-anchor: middle; }
.axis { stroke: #8b96a0; } .grid { stroke: #e4e7e9; } .dot { fill: #0a6c85; }
.line { fill: none; stroke: #0a6c85; stroke-width: 2.2; stroke-linejoin: round; }
"""


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


METRICS: dict[str, Callable[[Night], float]] = {
    "seconds": lambda each: each.seconds,
    "CPU seconds": lambda each: each.cpu_s,
    "driver, private MB": lambda each: each.driver_mb,
    "largest worker, private MB": lambda each: each.worker_mb,
    "added to the root, MB": lambda each: each.stored_mb,
    "recall@10": lambda each: each.recall,
}


def main(rows: int, nights: int, chart: Path | None) -> None:
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
    if chart:
        chart.write_text(_chart(found[1:]), encoding="utf-8")
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
    units = units_by_ordinal(manifest)
    ids = pa.concat_tables(source.ids(units))["id"].combine_chunks()
    vectors = np.concatenate([vectors for _, vectors in source.batches(units)])
    order = np.argsort(ids.to_numpy(zero_copy_only=False))
    digest = hashlib.sha256(np.ascontiguousarray(vectors[order]).tobytes())
    digest.update("\n".join(ids.take(pa.array(order)).to_pylist()).encode())
    return digest.hexdigest()


def _print(rows: int, nights: Sequence[Night]) -> None:
    lines = []
    for name, metric in METRICS.items():
        values = [metric(each) for each in nights]
        shown = (values[0], statistics.median(values), values[-1], max(values))
        lines.append((name, *(f"{value:,.4g}" for value in shown)))
    title = f"{len(nights)} nights with 1 % of {rows:,} rows changed; {machine()}"
    print_table(title, lines, ("metric", "first", "median", "last", "highest"))
    rebuilt = [str(number) for number, each in enumerate(nights, 1) if each.index == "built anew"]
    print(f"\nThe index was rebuilt on night {', '.join(rebuilt) or 'none'}.")


def _chart(nights: Sequence[Night]) -> str:
    """Return an SVG image with a panel for each metric, two in a row."""
    gap, top, height = _PANEL
    panels = []
    for number, (name, metric) in enumerate(METRICS.items()):
        x, y = gap / 2 + number % 2 * (WIDTH + gap), top + number // 2 * height
        points = [(night, metric(each)) for night, each in enumerate(nights, 1)]
        panel = str(history_chart(points, name, from_zero=name != "recall@10"))
        place = f'<svg x="{x}" y="{y + top}" width="{WIDTH}" height="{HEIGHT}" '
        panels.append(
            f'<text class="heading" x="{x}" y="{y}">{name}</text>{panel.replace("<svg ", place, 1)}'
        )
    size = f"0 0 {2 * (WIDTH + gap)} {top + (len(panels) + 1) // 2 * height}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}"><style>{_STYLE}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{"".join(panels)}</svg>\n'
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--chart", type=Path, help="an SVG file to write")
    given = parser.parse_args()
    main(given.rows, given.nights, given.chart)
