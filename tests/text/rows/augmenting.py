"""Write manifests of augmented units for tests."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.files.base import Store
from pipeline.store.records.augmented import Augmented, Series
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import UnitRecord
from pipeline.store.records.write_once import store_by_content


def write_unit(store: Store, columns: dict[str, Any]) -> UnitRecord:
    """Write a unit with these columns, named by its content."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=10)
    file = store_by_content(
        store,
        sink.getvalue().to_pybytes(),
        "units/augmented/0123/unit",
        ".parquet",
        rows=len(next(iter(columns.values()))),
    )
    return UnitRecord(
        name=file.path.removesuffix(".parquet"),
        path=file.path,
        rows=file.rows,
        bytes=file.bytes,
        sha256=file.sha256,
    )


def write_manifest(store: Store, name: str, units: Sequence[dict[str, Any]]) -> str:
    """Write the next manifest of the series `name`. Returns its URI."""
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
