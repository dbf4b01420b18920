"""The texts of rows, by address: read from the corpus units of a release."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.address import ordinal_of, row_of
from pipeline.store.arrays import arrow_of, strings_of
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseUnit

_THREADS = 16  # units read at once: an object store answers each request in tens of milliseconds
_BATCH_ROWS = 4_096  # decoded at once; reading stops after the last wanted row
_REMEDY = "search without texts (--no-texts), restore the units, or roll back"


class MissingTexts(DataError):
    """The release has no readable corpus unit for a row."""


class Texts:
    """Texts of rows by address.

    A remote unit is copied to this machine once, checked, and kept in the cache. Threads may share an object.
    """

    def __init__(self, store: Store, units: Sequence[ReleaseUnit], verify: bool = True) -> None:
        self._store, self._units, self._verify = store, {unit.ordinal: unit for unit in units}, verify

    def take(self, addresses: np.ndarray) -> pa.Array:
        """Return the texts of `addresses` (n,) int64, in their order, as (n,) large_string.

        Raises:
            MissingTexts: a unit is not in the release, missing or damaged.
        """
        if not len(addresses):
            return strings_of([])
        ordinals, rows = ordinal_of(addresses), row_of(addresses)
        groups = [np.flatnonzero(ordinals == ordinal) for ordinal in np.unique(ordinals)]
        with ThreadPoolExecutor(min(_THREADS, len(groups))) as pool:
            texts = list(pool.map(lambda group: self._of_unit(int(ordinals[group[0]]), rows[group]), groups))
        return pa.concat_arrays(texts).take(arrow_of(np.argsort(np.concatenate(groups))))

    def _of_unit(self, ordinal: int, rows: np.ndarray) -> pa.Array:
        """Return the texts of these rows of one unit, in their order."""
        if (unit := self._units.get(ordinal)) is None:
            raise MissingTexts(
                "release", f"the corpus unit {ordinal} of an answer", "no unit of that number", _REMEDY
            )
        where = self._store.uri_of(unit.corpus.path)
        try:
            file = self._store.local(unit.corpus.path, unit.corpus.sha256 if self._verify else None)
            wanted, order = np.unique(rows, return_inverse=True)
            found = _texts_at(pq.ParquetFile(file), wanted)
        except FileNotFoundError:
            raise MissingTexts(where, "a corpus unit of the release", "no such file", _REMEDY) from None
        except (pa.ArrowException, KeyError) as error:
            raise MissingTexts(
                where, "a Parquet file with a column text", " ".join(str(error).split()), _REMEDY
            ) from None
        if len(found) != len(wanted):
            raise MissingTexts(where, f"a row with number {wanted[-1]:,}", "fewer rows", _REMEDY)
        return found.take(arrow_of(order))


def _texts_at(file: pq.ParquetFile, wanted: np.ndarray) -> pa.Array:
    """Read column text of the rows `wanted` (n,), which are ascending and unique."""
    found, start = [], 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=["text"]):
        low, high = np.searchsorted(wanted, [start, start + len(batch)])
        if low < high:
            found.append(pc.take(batch["text"], arrow_of(wanted[low:high] - start)).cast(pa.large_string()))
        if high == len(wanted):
            break
        start += len(batch)
    return pa.concat_arrays(found) if found else strings_of([])
