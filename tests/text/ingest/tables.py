"""Lines of stored key and text tables, read by the rules of their format alone."""

from typing import Any

import pyarrow.parquet as pq

from pipeline.store.files.base import Store
from pipeline.store.records.units import Corpus, TableBucket


def key_lines(store: Store, bucket: TableBucket) -> list[dict[str, Any]]:
    """Lines of a bucket by (id, file, row): a later delta replaces the line of the same file and row."""
    lines = {}
    for file in bucket.references():
        for line in pq.read_table(store.open(file.path, file.sha256)).to_pylist():
            lines[line["file"], line["row"]] = line
    remaining = (line for line in lines.values() if line["text_key"] is not None)
    return sorted(remaining, key=lambda line: (_sort_key(line["id"]), line["file"], line["row"]))


def text_lines(store: Store, corpus: Corpus) -> list[dict[str, Any]]:
    """Lines of all buckets, without those of units that the corpus no longer has."""
    units = {unit.ordinal for unit in corpus.units}
    lines = [
        line
        for bucket in corpus.texts
        for file in bucket.references()
        for line in pq.read_table(store.open(file.path, file.sha256)).to_pylist()
    ]
    return [line for line in lines if line["address"] >> 32 in units]


def _sort_key(row_id: str | int) -> bytes | int:
    return row_id.encode() if isinstance(row_id, str) else row_id
