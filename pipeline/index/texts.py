"""The texts behind addresses: read from the corpus units that a release names, a unit at a time."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.arrays import arrow_of, strings_of
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseUnit

_THREADS = 16  # units at once: an object store answers each in tens of milliseconds
_BATCH_ROWS = 4_096  # decoded at once; reading ends behind the last row that is wanted
_NO_TEXTS = "search without texts (--no-texts), restore the units, or roll back"


class MissingTexts(DataError):
    """The release has no readable corpus unit for a row."""


class Texts:
    """Texts of rows by address.

    A remote unit is copied to this machine once, checked, and stays in the cache. Threads may share it.
    """

    def __init__(self, store: Store, units: Sequence[ReleaseUnit], verify: bool = True) -> None:
        self._store, self._units, self._verify = store, {unit.ordinal: unit for unit in units}, verify

    def take(self, addresses: np.ndarray) -> pa.Array:
        """(n,) large_string: the texts of `addresses` (n,) int64, in their order.

        MissingTexts where a unit is not named, gone or damaged.
        """
        if not len(addresses):
            return strings_of([])
        ordinals, rows = addresses >> 32, addresses & 0xFFFFFFFF
        asked = [np.flatnonzero(ordinals == ordinal) for ordinal in np.unique(ordinals)]
        with ThreadPoolExecutor(min(_THREADS, len(asked))) as pool:
            texts = list(
                pool.map(lambda places: self._of_unit(int(ordinals[places[0]]), rows[places]), asked)
            )
        return pa.concat_arrays(texts).take(arrow_of(np.argsort(np.concatenate(asked))))

    def _of_unit(self, ordinal: int, rows: np.ndarray) -> pa.Array:
        """Texts of those rows of one unit, in their order."""
        unit = self._units.get(ordinal)
        if unit is None:
            raise MissingTexts(
                "release", f"the corpus unit {ordinal} of an answer", "none of that number", _NO_TEXTS
            )
        where = self._store.uri_of(unit.corpus.path)
        try:
            file = self._store.local(unit.corpus.path, unit.corpus.sha256 if self._verify else None)
            wanted, order = np.unique(rows, return_inverse=True)
            found = _rows_of(pq.ParquetFile(file), wanted)
        except FileNotFoundError:
            raise MissingTexts(where, "a corpus unit of the release", "no such file", _NO_TEXTS) from None
        except (pa.ArrowException, KeyError) as error:
            found = " ".join(str(error).split())
            raise MissingTexts(where, "a Parquet file with a column text", found, _NO_TEXTS) from None
        if len(found) != len(wanted):
            raise MissingTexts(where, f"a row {wanted[-1]:,}", "fewer rows", _NO_TEXTS)
        return found.take(arrow_of(order))


def _rows_of(file: pq.ParquetFile, wanted: np.ndarray) -> pa.Array:
    """Column text of the rows `wanted` (n,), ascending, each once."""
    found, start = [], 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=["text"]):
        low, high = np.searchsorted(wanted, [start, start + len(batch)])
        if low < high:
            found.append(pc.take(batch["text"], arrow_of(wanted[low:high] - start)).cast(pa.large_string()))
        if high == len(wanted):
            break
        start += len(batch)
    return pa.concat_arrays(found) if found else strings_of([])
