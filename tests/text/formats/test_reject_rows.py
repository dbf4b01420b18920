"""Rows are cut into tables by number and bytes, whatever tables they arrive in."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from pipeline.text.formats.reject_rows import rechunk


def cut_row_by_row(sizes: list[int], rows: int, max_bytes: int | None) -> list[list[int]]:
    """Cut as a person would: a row begins a table if the last one is full, or would be too large with it."""
    tables: list[list[int]] = []
    for size in sizes:
        is_full = not tables or len(tables[-1]) == rows
        if is_full or (max_bytes is not None and sum(tables[-1]) + size > max_bytes):
            tables.append([])
        tables[-1].append(size)
    return tables


@pytest.mark.parametrize("max_bytes", [None, 1, 12, 40, 10_000])
@pytest.mark.parametrize("seed", range(20))
def test_rows_are_cut_regardless_of_the_tables_they_arrive_in(max_bytes: int | None, seed: int):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 20, size=200).tolist()
    table = pa.table({"text": ["x" * size for size in sizes], "row": range(len(sizes))})
    ends = [0, *sorted(rng.integers(0, 200, size=7).tolist()), 200]
    parts = [table.slice(start, end - start) for start, end in pairwise(ends)]
    rows = int(rng.integers(1, 30))
    found = list(rechunk(parts, rows, max_bytes))
    assert [[len(text) for text in part["text"].to_pylist()] for part in found] == cut_row_by_row(
        sizes, rows, max_bytes
    )
    assert pa.concat_tables(found)["row"].to_pylist() == list(range(200))
