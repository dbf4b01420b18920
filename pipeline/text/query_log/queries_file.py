"""The file of queries that `manta query-log` makes for gates.queries: Parquet, one query in each row."""

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.files.disk import translate_disk_errors
from pipeline.store.files.open_store import store_of
from pipeline.text.formats.user_queries import SPACE, TEXT, TIME, VECTOR
from pipeline.text.query_log.lines import LoggedQuery

SCHEMA = pa.schema(
    {
        TEXT: pa.string(),
        VECTOR: pa.list_(pa.float32()),
        SPACE: pa.string(),
        TIME: pa.string(),  # the day
        "release": pa.int64(),
        "filtered": pa.bool_(),
        "k": pa.int64(),
        "answers": pa.int64(),
        "score": pa.float64(),
    }
)
"""columns; a hash of the client is not among them"""


def write_queries(file: str, queries: Sequence[LoggedQuery]) -> None:
    """Write queries to a path or a URI, in one step. A local file can be read by its owner alone.

    Raises:
        TransientError: the disk is full.
        ConfigError: the folder cannot be written.
    """
    columns = {
        TEXT: [query.text for query in queries],
        VECTOR: [query.array() for query in queries],
        SPACE: [query.space_id for query in queries],
        TIME: [query.day for query in queries],
    }
    rest = {name: [getattr(query, name) for query in queries] for name in SCHEMA.names[len(columns) :]}
    write_table(file, pa.table(columns | rest, SCHEMA))


def write_table(file: str, table: pa.Table) -> None:
    """Write a table as Parquet; see `write_queries`."""
    content = io.BytesIO()
    pq.write_table(table, content)
    if "://" in file:
        store, name = store_of(file)
        store.write(name, content.getvalue())
        return
    path = Path(file)
    new = path.with_name(f"{path.name}.new")
    with translate_disk_errors(str(path.parent)):
        with contextlib.suppress(FileNotFoundError):
            new.unlink()  # a kill left it
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(content.getvalue())
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(new, path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
