"""Write manifests of augmented units for tests."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.augmented import Augmented, Series
from pipeline.store.base import Store
from pipeline.store.once import store_by_content
from pipeline.store.stored import FileRef
from pipeline.store.units import UnitRecord


def write_unit(store: Store, columns: dict[str, Any]) -> UnitRecord:
    """Write a unit with these columns, named by its content."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=10)
    made = store_by_content(
        store,
        sink.getvalue().to_pybytes(),
        "units/augmented/0123/unit",
        ".parquet",
        rows=len(next(iter(columns.values()))),
    )
    return UnitRecord(
        name=made.path.removesuffix(".parquet"),
        path=made.path,
        rows=made.rows,
        bytes=made.bytes,
        sha256=made.sha256,
    )


def write_manifest(store: Store, name: str, units: Sequence[dict[str, Any]]) -> str:
    """Write the next manifest of that name; its URI."""
    series = Series(store, name)
    number, _ = series.newest()
    records = tuple(write_unit(store, unit) for unit in units)
    manifest = Augmented(
        stage="augmented",
        units=records,
        labels=("zh", "de"),
        corpus=FileRef(path="corpora/none.json", sha256="0" * 64),
        corpus_digest="",
    )
    return store.uri_of(series.path(series.add(manifest, number)))
