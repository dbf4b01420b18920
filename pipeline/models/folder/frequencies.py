"""Read counts of words or of tokens: a Parquet file with the columns word, or token, and count.

Imports neither torch nor transformers.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ModelError
from pipeline.store.files.open_store import open_store
from pipeline.store.rows.arrays import is_text, plain_type
from pipeline.text.sources.listing import local_path

FREQUENCIES = "frequencies.parquet"  # name of the file in an encoder folder
_BATCH_ROWS = 16_384
_KEY = "encoder.frequencies"


@dataclass(frozen=True)
class Frequencies:
    """Counts of n words, or of n tokens of a tokenizer's vocabulary."""

    words: pa.ChunkedArray
    """(n,) strings; a word may occur in several rows"""
    counts: np.ndarray
    """(n,) float64, not negative"""
    are_tokens: bool = False
    """the strings are tokens of a vocabulary, such as ##ing, which must not be tokenized"""

    def batches(self) -> Iterator[tuple[list[str], np.ndarray]]:
        """Yield words and their counts, one batch at a time."""
        for start in range(0, len(self.words), _BATCH_ROWS):
            yield self.words.slice(start, _BATCH_ROWS).to_pylist(), self.counts[start : start + _BATCH_ROWS]

    def of_vocabulary(self, vocabulary: Mapping[str, int], *, lower: bool) -> np.ndarray:
        """Sum the counts of each word of a vocabulary: (words,) float64, 0 for a word without a count.

        Args:
            vocabulary: id of each word, from 0.
            lower: the vocabulary is lowercase, so counts of spellings that differ in case are summed.
        """
        sums = np.zeros(len(vocabulary))
        for words, counts in self.batches():
            ids = np.array([vocabulary.get(word.lower() if lower else word, -1) for word in words])
            is_known = ids >= 0
            np.add.at(sums, ids[is_known], counts[is_known])
        return sums


def locate_frequencies(path: str) -> Path:
    """Return the file's local path; a file at a URI is copied into this machine's cache.

    Raises:
        ModelError: there is no such file.
    """
    local = local_path(path)
    if local is not None and Path(local).is_file():
        return Path(local)
    if local is None:
        folder, _, name = path.rpartition("/")
        with suppress(FileNotFoundError):
            return open_store(folder).local(name)
    raise ModelError(
        _KEY, "a Parquet file with the columns word and count", f"no such file {path}", "correct the path"
    )


def read_frequencies(file: Path) -> Frequencies:
    """Read words, or tokens, and counts.

    Raises:
        ModelError: a column is missing or of another type, a word or count is missing, or a count is negative
            or not finite.
    """
    try:
        parquet = pq.ParquetFile(file)
        names = parquet.schema_arrow.names
        key = "token" if "token" in names and "word" not in names else "word"
        if missing := [name for name in (key, "count") if name not in names]:
            raise _unusable(
                file, f"the columns {key} and count", f"no {missing[0]} among {', '.join(names[:8])}"
            )
        table = parquet.read(columns=[key, "count"])
        words, counts = table[key], table["count"]
    except (pa.ArrowException, OSError) as error:
        raise _unusable(file, "a readable Parquet file", " ".join(str(error).split())[:200]) from None
    if nulls := words.null_count + counts.null_count:
        raise _unusable(file, "a word and a count in every row", f"{nulls} missing")
    count_type = plain_type(counts.type)
    are_numbers = pa.types.is_integer(count_type) or pa.types.is_floating(count_type)
    if not (is_text(words.type) and are_numbers):
        raise _unusable(file, "words as strings and counts as numbers", f"{words.type} and {counts.type}")
    words = words.cast(pa.string())
    values = np.asarray(pc.cast(counts.cast(count_type), pa.float64(), safe=False).to_numpy())
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    expected = "counts from 0 on, not all of them 0"
    if len(bad):
        raise _unusable(file, expected, f"{values[bad[0]]:g} for {words[bad[0]].as_py()!r}")
    if not values.any():
        raise _unusable(file, expected, "only zeros" if len(values) else "no row")
    return Frequencies(words, values, are_tokens=key == "token")


def _unusable(file: Path, expected: str, found: str) -> ModelError:
    return ModelError(
        f"{_KEY} {file}", expected, found, "write one row per word: word (string), count (number)"
    )
