"""Jobs that shuffle the words of texts, and the rows that they make."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.flows.augment.result import Augmentation
from pipeline.settings import Job

LENIENT = "augment.keep={identical: true, duplicates: true, length_ratio: null, repeats: null}"


MakeJob = Callable[..., Job]


def shuffles(folder: Path, **options: Any) -> str:
    settings = {"method": "test_shuffles", "options": {"journal": str(folder / "journal"), **options}}
    return f"augment.variants.back={json.dumps(settings)}"


def rows_of(augmentation: Augmentation) -> dict[str, dict[str, Any]]:
    """Return all rows by id."""
    tables = [
        pq.read_table(augmentation.store.open(unit.path, unit.sha256)) for unit in augmentation.manifest.units
    ]
    rows = [row for table in tables for row in table.to_pylist()]
    assert len({row["id"] for row in rows}) == len(rows) == augmentation.manifest.rows
    return {row["id"]: row for row in rows}
