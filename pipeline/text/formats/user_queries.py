"""Read the file of gates.queries: texts, or vectors of queries whose texts were not logged."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.rows.arrays import is_text
from pipeline.text.formats.queries import is_parquet, open_queries, read_texts

TEXT, VECTOR, SPACE, TIME = "text", "vector", "space_id", "time"
"""columns of a file with vectors; `text` and `time` are optional"""
_BATCH_ROWS = 256


@dataclass(frozen=True, eq=False)
class UserQueries:
    """Queries of users, each with a text or with a vector."""

    texts: tuple[str, ...]
    """(q,) texts; empty for a query that has only a vector"""
    vectors: np.ndarray
    """(v, d) float32, raw vectors of the queries without a text, in the order of the file"""
    spaces: frozenset[str] = frozenset()
    """spaces of these vectors"""
    times: tuple[str, ...] = ()
    """first and last time of the queries, as in the file; empty if the file has none"""
    is_cut: bool = False
    """whether the file has more queries than were read"""

    def __len__(self) -> int:
        return len(self.texts)


def read_user_queries_file(file: str, most: int) -> UserQueries:
    """Read the first `most` queries that are not blank.

    A Parquet file with a column `vector` has raw vectors of queries and the column `space_id`. A row that
    also has a `text` counts as a text, which every encoder can encode.

    Raises:
        ConfigError: there is no such file.
        DataError: the file cannot be read, or has vectors of several lengths or without a space.
    """
    if is_parquet(file):
        with open_queries(file) as stream:
            reader = pq.ParquetFile(stream)
            if VECTOR in reader.schema_arrow.names:
                return _read_vectors(reader, file, most)
    texts = list(islice((text for text in read_texts(file) if text.strip()), most + 1))
    return UserQueries(tuple(texts[:most]), np.zeros((0, 0), np.float32), is_cut=len(texts) > most)


def _read_vectors(reader: pq.ParquetFile, file: str, most: int) -> UserQueries:
    """Read a file with the column `vector`; rows with neither a text nor a vector are blank."""
    columns = _check_columns(reader.schema_arrow, file)
    texts: list[str] = []
    vectors: list[list[float]] = []
    spaces, times, is_cut = set[str](), set[str](), False
    for batch in reader.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
        for row in batch.to_pylist():
            text, vector = (row.get(TEXT) or "").strip(), row[VECTOR]
            if not text and vector is None:
                continue
            if is_cut := len(texts) == most:
                break
            texts.append(text)
            if not text:
                vectors.append(vector)
                spaces.add(row[SPACE] or "")
            if row.get(TIME) is not None:
                times.add(str(row[TIME]))
        if is_cut:
            break
    matrix = _matrix(vectors, file)
    return UserQueries(
        tuple(texts), matrix, frozenset(spaces), (min(times), max(times)) if times else (), is_cut
    )


def _check_columns(schema: pa.Schema, file: str) -> Sequence[str]:
    """Return the columns to read. Raises DataError if one is missing or has another type."""

    def is_vector(kind: pa.DataType) -> bool:
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        return is_list and pa.types.is_floating(kind.value_type)

    types = {field.name: field.type for field in schema}
    has_space = SPACE in types and is_text(types[SPACE])
    if not is_vector(types[VECTOR]) or not has_space or (TEXT in types and not is_text(types[TEXT])):
        found = ", ".join(f"{name}: {types[name]}" for name in (VECTOR, SPACE, TEXT) if name in types)
        raise DataError(
            file,
            "lists of floats in the column vector, and strings in the columns space_id and text",
            found,
            "convert these columns, or leave the column vector out",
        )
    return [name for name in (TEXT, VECTOR, SPACE, TIME) if name in types]


def _matrix(vectors: Sequence[Any], file: str) -> np.ndarray:
    """Return vectors as (v, d) float32. Raises DataError if they differ in length or one has a null."""
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1 or any(None in vector for vector in vectors):
        found = "a null among numbers" if len(lengths) == 1 else f"{lengths[0]} and {lengths[-1]}"
        remedy = "give the vectors of one encoder"
        raise DataError(f"{file}: vector", "vectors of one length", found, remedy)
    return np.array(vectors, np.float32).reshape(len(vectors), lengths[0] if lengths else 0)
