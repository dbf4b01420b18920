"""Parquet input files, random rows to write to them, and the rows of the units that they give."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from pipeline.settings import CorpusSettings


def write(directory, *files, schema=None):
    """Write Parquet files 00.parquet, 01.parquet ... of (id, text) rows; returns settings to read them."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(files):
        table = pa.table(
            {"id": [row[0] for row in rows], "text": [row[1] for row in rows]},
            schema=schema or pa.schema([("id", pa.string()), ("text", pa.string())]),
        )
        pq.write_table(table, directory / f"{number:02d}.parquet", row_group_size=7)
    return CorpusSettings(uri=str(directory), max_quarantined=1)


def rows_of(store, ingested):
    """Rows of all units in order."""
    return [row for unit in ingested.units for row in pq.read_table(store.open(unit.path)).to_pylist()]


ids = st.none() | st.sampled_from(["a", "b", "c", "d", "é", ""]) | st.text(max_size=3)


corpora = st.lists(
    st.tuples(
        ids, st.none() | st.sampled_from(["", "  ", "\n", "one", " one ", "two\x00"]) | st.text(max_size=6)
    ),
    min_size=1,
    max_size=40,
)


def random_rows(count, seed, distinct):
    draw = random.Random(seed)
    return [(f"id-{draw.randrange(distinct)}", f"text {draw.random()}") for _ in range(count)]
