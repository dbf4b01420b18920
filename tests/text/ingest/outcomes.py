"""Outcome of reading a corpus: live rows, quarantined rows and counts."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.text.ingest.ingest import ingest


def write_parquet(corpus, name="a.parquet", **columns):
    path = f"{corpus.uri}/{name}"
    pq.write_table(pa.table(columns), path)
    return path


def write_bytes(corpus, name, content):
    Path(corpus.uri, name).write_bytes(content)


def outcome(corpus, store, **changes):
    """(live (id, text) pairs, (file, row, reason) of the quarantine, counts)"""
    ingested = ingest(corpus.model_copy(update=changes), 100, store)
    live = [
        (row["id"], row["text"])
        for unit in ingested.units
        for row in pq.read_table(store.open(unit.path)).to_pylist()
    ]
    quarantined = (
        pq.read_table(store.open(ingested.quarantine.path)).to_pylist() if ingested.quarantine else []
    )
    return live, [(row["file"], row["row"], row["reason"]) for row in quarantined], ingested.counts
