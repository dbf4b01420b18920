"""How often words occur: a Parquet file with the columns word and count.

Imports neither torch nor transformers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ModelError
from pipeline.store.arrays import plain_type
from pipeline.store.store import open_store
from pipeline.text.corpus.listing import local_path

FREQUENCIES = "frequencies.parquet"  # its name in an encoder folder that carries its own
_BATCH = 16_384
_KEY = "encoder.frequencies"


@dataclass(frozen=True)
class Frequencies:
    """words (n,) strings, counts (n,) float64, not negative; a word may stand several times."""

    words: pa.ChunkedArray
    counts: np.ndarray

    def batches(self) -> Iterator[tuple[list[str], np.ndarray]]:
        """Both, a part at a time."""
        for start in range(0, len(self.words), _BATCH):
            yield self.words.slice(start, _BATCH).to_pylist(), self.counts[start : start + _BATCH]

    @property
    def total(self) -> float:
        """All occurrences of all words."""
        return float(self.counts.sum())


def locate_frequencies(path: str) -> Path:
    """The file on this machine; one at a URI is copied into its cache. ModelError where there is none."""
    try:
        if (local := local_path(path)) is None:
            parent, _, name = path.rpartition("/")
            return open_store(parent).local(name)
    except FileNotFoundError:
        local = None
    if local is None or not Path(local).is_file():
        raise ModelError(
            _KEY, "a Parquet file with the columns word and count", f"no such file {path}", "check it"
        )
    return Path(local)


def read_frequencies(file: Path) -> Frequencies:
    """The file's words and counts; ModelError for a column that is missing or of another type, for a missing
    word and for a count that is no number from 0 on.
    """
    try:
        table = pq.ParquetFile(file)
        if missing := [name for name in ("word", "count") if name not in table.schema_arrow.names]:
            raise _unusable(
                file,
                "the columns word and count",
                f"no {missing[0]} among {', '.join(table.schema_arrow.names[:8])}",
            )
        words, counts = table.read(columns=["word", "count"]).select(["word", "count"]).columns
    except (pa.ArrowException, OSError) as error:
        raise _unusable(file, "a readable Parquet file", " ".join(str(error).split())[:200]) from None
    if words.null_count or counts.null_count:
        raise _unusable(
            file, "a word and a count in every row", f"{words.null_count + counts.null_count} missing"
        )
    kinds = plain_type(words.type), plain_type(counts.type)
    if not (pa.types.is_string(kinds[0]) or pa.types.is_large_string(kinds[0])) or not (
        pa.types.is_integer(kinds[1]) or pa.types.is_floating(kinds[1])
    ):
        raise _unusable(file, "words as strings and counts as numbers", f"{words.type} and {counts.type}")
    words, numbers = (
        words.cast(pa.string()),
        np.asarray(pc.cast(counts.cast(kinds[1]), pa.float64(), safe=False).to_numpy()),
    )
    bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(bad) or not numbers.any():
        found = (
            f"{numbers[bad[0]]:g} for {words[bad[0]].as_py()!r}"
            if len(bad)
            else "no other"
            if len(numbers)
            else "no row"
        )
        raise _unusable(file, "counts from 0 on, not all of them 0", found)
    return Frequencies(words, numbers)


def _unusable(file: Path, expected: str, found: str) -> ModelError:
    return ModelError(
        f"{_KEY} {file}", expected, found, "write one row per word: word (string), count (number)"
    )
