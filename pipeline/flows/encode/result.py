"""Sums over the batches of a unit while it is encoded: moments, counts, and rows without a usable vector."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.flows.encode.isolate import Rejection
from pipeline.stats.moments import Moments
from pipeline.text.tokens.coverage import CoverageCounter

if TYPE_CHECKING:
    from pipeline.models.inference.windows import EncodedBatch

LENGTH_BIN = 8  # tokens per bar of the length histogram
_UNUSABLE = Rejection(
    "unusable_vector",
    "the vector is zero or not finite, possibly only after rounding to the type that encode.vectors sets",
)


class UnitResult:
    """Sums over the batches of a unit.

    Attributes:
        moments: moments of the usable vectors.
        dropped: rows without a usable vector, ascending.
        quarantined: quarantine entries of these rows.
        copied: number of copied vectors, by the numerics that computed them.
    """

    def __init__(self, moments: Moments, rejected: Mapping[int, Rejection]) -> None:
        """Start without rows.

        Args:
            moments: empty moments.
            rejected: texts that could not be encoded, by row.
        """
        self._rejected = rejected
        self.moments = moments
        self.rows = self.truncated = self.tokens = 0
        self._covered = CoverageCounter()
        self._lengths: Counter[int] = Counter()
        self.dropped: list[int] = []
        self.quarantined: list[dict[str, Any]] = []
        self.copied: dict[str, int] = {}

    def add(self, encoded: "EncodedBatch", batch: pa.RecordBatch, stored_as: str) -> np.ndarray:
        """Count a batch. Returns a mask (n,) of the rows whose vector is usable as it will be stored."""
        good, vectors = ~np.asarray(encoded.bad), encoded.vectors
        if stored_as == "float16":
            with np.errstate(over="ignore"):
                # so that the moments describe the vectors as they are stored
                vectors = vectors.astype(np.float16).astype(np.float32)
            good &= np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
        for number in np.flatnonzero(~good).tolist():
            reason, detail = self._rejected.get(self.rows + number, _UNUSABLE)
            self.quarantined.append(
                {
                    "file": batch["file"][number].as_py(),
                    "row": batch["row"][number].as_py(),
                    "id": str(batch["id"][number].as_py()),
                    "reason": reason,
                    "detail": detail,
                    "excerpt": batch["text"][number].as_py()[:200],
                }
            )
            self.dropped.append(self.rows + number)
        self.moments = self.moments.merge(Moments.of(vectors[good]))
        self.rows += len(good)
        self.truncated += int(np.count_nonzero(encoded.counts.truncated))
        self.tokens += int(np.sum(encoded.counts.lengths))
        self._covered.add(batch["text"], encoded.counts)
        self._lengths.update((encoded.counts.lengths // LENGTH_BIN).tolist())
        return good

    def counts(self) -> dict[str, int]:
        """Return the counts of the unit's record."""
        reasons = Counter(f"quarantined_{row['reason']}" for row in self.quarantined)
        lengths = {f"length_{LENGTH_BIN * number:05d}": count for number, count in self._lengths.items()}
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "truncated": self.truncated,
            "quarantined": len(self.quarantined),
            **dict(sorted({**reasons, **lengths}.items())),
            **self._covered.counts(),
        }
