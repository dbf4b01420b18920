"""Measure the recall of users' queries before and after the search effort is chosen for them, and its cost.

    python -m tests.benchmarks.user_queries --folder /var/tmp/users

The queries are 1,000 questions of Quora, sentences of STS-B, and sentences of SICK; the corpora are captions
and sentences of Wikipedia. Every night after the first of a corpus and kind keeps the index and changes the
effort alone. Before: gates.recall_at_10_queries=0, so that rows choose the effort. A folder of an earlier run
is used again, with its vectors.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.errors import GatesRefused
from pipeline.flows.index.rebuild_rules import FOR_USERS
from pipeline.flows.index.records import load_queries
from pipeline.flows.night.nightly import nightly
from pipeline.index.files.parts import load_index
from pipeline.index.library import faiss_threads
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
from tests.benchmarks.machine import machine, print_table

Numbers = dict[str, float | int | None]

QUERIES = 1_000
TIMED = 200  # queries, one after the other
QUERY_FILES = {
    "Quora": ("pairs/quora_dev.parquet",),
    "STS-B": ("sts/STSB-dev.parquet", "sts/STSB-test.parquet"),
    "SICK": ("sts/SICK-R-train.parquet", "sts/SICK-R-trial.parquet"),
}
KINDS = ("ivf_flat", "ivf_sq8", "hnsw")


def write_corpora(data: Path, folder: Path) -> dict[str, Path]:
    """Return the folder of each corpus; that of Wikipedia is written."""
    texts = pq.read_table(data / "wiki/sentences.parquet", columns=["text"])["text"]
    wiki = folder / "corpora/wiki"
    wiki.mkdir(parents=True, exist_ok=True)
    if not (file := wiki / "sentences.parquet").exists():
        ids = pa.array([f"w{row}" for row in range(len(texts))])
        pq.write_table(pa.table({"id": ids, "text": texts}), file)
    return {"captions": data / "captions/shards", "Wikipedia": wiki}


def write_queries(data: Path, folder: Path) -> dict[str, Path]:
    """Draw different sentences of each set, with seed 0."""
    files = {}
    for name, sources in QUERY_FILES.items():
        found = dict.fromkeys(
            text.strip()
            for source in sources
            for text in pq.read_table(data / source, columns=["sentence1"])["sentence1"].to_pylist()
        )
        drawn = np.random.default_rng(0).permutation(sorted(found))[:QUERIES]
        files[name] = folder / f"{name}.txt"
        files[name].write_text("\n".join(" ".join(text.split()) for text in drawn))
    return files


def night(corpus: Path, root: Path, kind: str, *overrides: str) -> tuple[str, Numbers]:
    """Run a night. Returns what became of it, and its numbers for the queries of gates.queries."""
    settings = (
        f"corpus.uri={corpus}",
        "corpus.id=id",
        "corpus.text=text",
        f"release.root={root}",
        f"index.kind={kind}",
        "whiten.mode=off",
        *overrides,
    )
    try:
        nightly(load_settings(Job, None, settings), Stages())
    except GatesRefused as refused:
        return f"refused: {refused}", {}
    store = open_store(str(root))
    release = Releases(store).current()
    assert release is not None
    return "published", numbers_of(store, release)


def numbers_of(store: Store, release: ReleaseManifest) -> Numbers:
    """Return recalls and efforts of a release, and the CPU time of a query at its effort."""
    numbers: Numbers = {"rows": release.gates["recall_at_10"].value}
    for choice in release.choices:
        if choice.what == FOR_USERS:
            numbers |= choice.numbers
    assert release.index.queries is not None
    queries = load_queries(store, release.index.queries)
    vectors = queries.vectors[queries.of_users][:TIMED]
    parts = load_index(store, release.index, release.tombstones)
    with faiss_threads(1):
        parts.search(vectors[:1], 10)
        start = time.process_time()  # not of the clock, as the machine may be busy
        for row in range(len(vectors)):
            parts.search(vectors[row : row + 1], 10)
        numbers["cpu_ms"] = 1e3 * (time.process_time() - start) / len(vectors)
    return numbers


def compare(corpus: Path, root: Path, kind: str, queries: Path) -> list[str]:
    """Measure one set of queries at the effort of rows, and at the effort that is chosen for both."""
    asked = f"gates.queries={queries}"
    outcome, before = night(corpus, root, kind, asked, "gates.recall_at_10_queries=0")
    if not before:  # the rows' recall is too low
        print(outcome)
        return [*6 * [""], "", "refused"]
    outcome, after = night(corpus, root, kind, asked)
    cells = [f"{before['effort']}", f"{before['rows']:.3f}", f"{before['recall_at_10']:.3f}"]
    if not after:
        print(outcome)
        return [*cells, "", "", "", "", "refused"]
    return [
        *cells,
        f"{after['effort']}",
        f"{after['rows']:.3f}",
        f"{after['recall_at_10']:.3f}",
        f"{before['cpu_ms']:.2f} to {after['cpu_ms']:.2f}",
        outcome,
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "manta-users"))
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--corpora", nargs="+", default=["captions", "Wikipedia"])
    given = parser.parse_args()
    data = Path(os.environ["MANTA_EVAL_DATA"])
    given.folder.mkdir(parents=True, exist_ok=True)
    corpora, queries = write_corpora(data, given.folder), write_queries(data, given.folder)
    rows = [
        [name, kind, asked, *compare(corpora[name], given.folder / name, kind, file)]
        for name in given.corpora
        for kind in given.kinds
        for asked, file in queries.items()
    ]
    header = ["corpus", "index", "queries", "effort", "recall@10 of rows", "of the queries"]
    header += ["effort for both", "of rows", "of the queries", "CPU ms of a query", "night"]
    print_table(machine(), rows, header)


if __name__ == "__main__":
    main()
