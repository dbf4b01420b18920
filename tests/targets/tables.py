"""Small tables of id, vector and kept columns, as exports write them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.targets.target import EMPTY, HeldRelease, Position

DIM = 8


def table_of(ids: Sequence[Any], **kept: pa.Array) -> pa.Table:
    """Return rows with vectors and the kept columns."""
    vectors = np.random.default_rng(0).normal(size=(len(ids), DIM)).astype(np.float32)
    field = pa.field("element", pa.float32(), nullable=False)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), type=pa.list_(field, DIM))
    return pa.table({"id": pa.array(ids), "vector": column, **kept})


def beginning(rows: pa.Table) -> Position:
    """Return the position of an export that begins."""
    columns = {field.name: str(field.type) for field in rows.schema}
    return Position(
        space_id="space", columns=columns, releases=(EMPTY,), next=HeldRelease(number=1, sha256="a")
    )
