"""Sums over the batches of a unit that is encoded: moments, counts, and rows without a usable vector."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.stats.moments import Moments
from pipeline.text.tokens.coverage import CoverageCounter

LENGTH_BIN = 8  # tokens per bar of the length histogram
_UNUSABLE = (
    "unusable_vector",
    "the vector is zero or not finite, or becomes so when it is stored as encode.vectors sets",
)


class UnitResult:
    """Sums over the batches of a unit.

    Attributes:
        moments: moments of the usable vectors.
        dropped: rows without a usable vector, ascending.
        bad: quarantine entries of these rows.
        copied: number of copied vectors, by the numerics that computed them.
    """

    def __init__(self, moments: Moments, rejected: Mapping[int, tuple[str, str]]) -> None:
        """Start with no rows. rejected: (reason, detail) by row, for texts that no encoder could encode."""
        self._rejected = rejected
        self.moments, self.rows, self.truncated, self.tokens = moments, 0, 0, 0
        self._covered = CoverageCounter()
        self._lengths: Counter[int] = Counter()
        self.dropped: list[int] = []
        self.bad: list[dict[str, Any]] = []
        self.copied: dict[str, int] = {}

    def add(self, encoded: Any, batch: pa.RecordBatch, stored_as: str) -> np.ndarray:
        """Count a batch. Returns a mask (n,) of the rows whose vector is usable as it will be stored."""
        good, vectors, counts = ~np.asarray(encoded.bad), encoded.vectors, encoded.counts
        if stored_as == "float16":
            with np.errstate(over="ignore"):
                # moments are those of the vectors as stored
                vectors = vectors.astype(np.float16).astype(np.float32)
            good &= np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
        for number in np.flatnonzero(~good).tolist():
            reason, detail = self._rejected.get(self.rows + number, _UNUSABLE)
            row = {name: batch[name][number].as_py() for name in ("file", "row")}
            row |= {"id": str(batch["id"][number].as_py()), "reason": reason, "detail": detail}
            self.bad.append(row | {"excerpt": batch["text"][number].as_py()[:200]})
            self.dropped.append(self.rows + number)
        self.moments = self.moments.merge(Moments.of(vectors[good]))
        self.rows += len(good)
        self.truncated += int(np.count_nonzero(counts.truncated))
        self.tokens += int(np.sum(counts.lengths))
        self._covered.add(batch["text"], counts)
        self._lengths.update((counts.lengths // LENGTH_BIN).tolist())
        return good

    def counts(self) -> dict[str, int]:
        """Return the counts of the unit's record."""
        reasons = Counter(f"quarantined_{row['reason']}" for row in self.bad)
        lengths = {f"length_{LENGTH_BIN * number:05d}": count for number, count in self._lengths.items()}
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "truncated": self.truncated,
            "quarantined": len(self.bad),
            **dict(sorted({**reasons, **lengths}.items())),
            **self._covered.counts(),
        }
