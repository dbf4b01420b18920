"""Repeated ids are counted from the stored key tables, whatever wrote them."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.flows.context import FlowContext
from pipeline.flows.night.key_facts import read_keys
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus, TableBucket
from pipeline.store.records.write_once import store_table_by_content
from pipeline.text.key_tables.buckets import delta_schema
from pipeline.text.key_tables.keys import keys_schema


@pytest.mark.parametrize(
    ("buckets", "repeated"),
    [
        ([], 0),
        ([[("a", 0), ("b", 1)], [("c", 2)]], 0),
        ([[("a", 0), ("a", None), ("b", 1)], [("c", 2), ("c", None)]], 0),
        ([[("a", 0), ("a", 1), ("b", 2)], [("c", 3), ("c", 4), ("c", 5)]], 3),
    ],
)
def test_live_ids_that_occur_again_are_counted_in_all_buckets(
    child: LocalWorkers, tmp_path: Path, buckets: list[list[tuple[str, int | None]]], repeated: int
):
    store = open_store(tmp_path)
    schema = pa.schema([("id", pa.string()), ("address", pa.int64()), ("text_key", pa.binary(16))])
    tables = [
        pa.Table.from_pylist(
            [{"id": row_id, "address": address, "text_key": bytes(16)} for row_id, address in rows], schema
        )
        for rows in buckets
    ]
    files = (store_table_by_content(store, table, "keys/bucket") for table in tables)
    keys = tuple(TableBucket(**dict(file)) for file in files)
    corpus = Corpus(id="0", digest="0", units=(), keys=keys)
    assert read_keys(FlowContext(Job(), store, child, Stages()), corpus).repeated_ids == repeated


def test_ids_of_a_bucket_with_a_delta_are_counted_after_its_changes(child: LocalWorkers, tmp_path: Path):
    store, schema = open_store(tmp_path), delta_schema(keys_schema(pa.string()))

    def stored(*lines: tuple[str, int, int | None, bytes | None]) -> FileRef:
        names = ("id", "row", "address", "text_key")
        rows = [{"file": "a"} | dict(zip(names, line, strict=True)) for line in lines]
        return store_table_by_content(store, pa.Table.from_pylist(rows, schema), "keys/bucket")

    text = bytes(16)
    base = stored(("a", 0, 0, text), ("a", 1, 1, text), ("b", 2, 2, text), ("b", 3, None, text))
    delta = stored(("a", 1, None, None), ("b", 3, 3, text), ("c", 4, 4, text))
    buckets = TableBucket(**dict(base)), TableBucket(**dict(base), deltas=(delta, stored(("b", 2, 2, None))))
    counts = [
        read_keys(
            FlowContext(Job(), store, child, Stages()), Corpus(id="0", digest="0", units=(), keys=(bucket,))
        ).repeated_ids
        for bucket in (*buckets, TableBucket(**dict(base), deltas=(delta,)))
    ]
    assert counts == [1, 0, 1]
