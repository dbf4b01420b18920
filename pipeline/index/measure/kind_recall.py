"""Recall that the codes of each kind of index reach: measured on a sample of rows, and expected for more
rows.

faiss is not loaded here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.config import Settings
from pipeline.index.measure.metrics import Proportion
from pipeline.settings.index_kinds import DIMS_PER_BYTE, KINDS
from pipeline.store.records.sealed_json import Stored

# Proportion of the permitted misses that the codes alone may cause. The other half is left for the lists that
# a search does not visit: if the codes caused all permitted misses, every list would have to be visited.
_MISSED_BY_CODES = 0.5

# The recall of codes may be this much higher for other vectors than for the captions.
_OTHER_VECTORS = 0.1


class KindVariant(NamedTuple):
    """A named kind of index, with the length of its codes if it has a product quantizer."""

    kind: str
    dims_per_byte: int = DIMS_PER_BYTE


class CodeRecall(Settings):
    """Recall@10 of a kind whose lists are all visited, among samples of several sizes.

    Such a search misses neighbours only because the codes are not exact.
    """

    kind: str
    dims_per_byte: int
    rows: tuple[int, ...]
    """sizes of the samples, ascending"""
    recall: tuple[Proportion, ...]
    """recall@10 in each of them"""
    scan_ns: float = 0.0
    """time of scoring one row for one query, on one thread"""

    def expected(self, rows: int) -> float:
        """Return the lowest recall@10 to expect among `rows` rows.

        The error of a code does not depend on the number of rows, but with more rows the neighbours of a
        query are closer together, so the same error swaps more of them. The proportion of missed neighbours
        is extrapolated as a power of the number of rows that is fitted to the samples, and never becomes
        smaller. The extrapolation starts from the low end of the largest sample's 95 % interval.
        """
        last, growth = self.recall[-1], max(1.0, rows / self.rows[-1]) ** self._exponent()
        return max(0.0, last.low - (1 - last.value) * (growth - 1))

    def _exponent(self) -> float:
        """Return the power of the number of rows by which the missed proportion grows, from 0 to 1.

        It is fitted to the upper ends of the intervals of the missed proportions, so that a handful of missed
        answers do not decide it.
        """
        missed = [1 - proportion.low for proportion in self.recall]
        if len(missed) < 2:
            return 0.0
        slope, _ = np.polyfit(np.log(self.rows), np.log(missed), 1)
        return float(np.clip(slope, 0.0, 1.0))


class KindRecalls(Stored):
    """Recall of several kinds, measured on the same rows."""

    source: str
    """description of the measured vectors that ends a sentence: ... measured on <source>"""
    measured: tuple[CodeRecall, ...]

    def of(self, variant: KindVariant) -> CodeRecall | None:
        """Return the measurement of a kind; None if it was not measured."""
        return next((code for code in self.measured if (code.kind, code.dims_per_byte) == variant), None)


def required_of_codes(target: float) -> float:
    """Return the recall that a kind's codes must reach, so that the index can reach the recall `target`."""
    return 1 - (1 - target) * _MISSED_BY_CODES


def may_suffice(variant: KindVariant, target: float) -> bool:
    """Return whether the codes of a kind might be exact enough, by their recall among captions."""
    recall = KINDS[variant.kind].code_recall[variant.dims_per_byte][-1]
    return recall >= required_of_codes(target) - _OTHER_VECTORS


def _among_captions(kind: str, dims_per_byte: int, recall: Sequence[float]) -> CodeRecall:
    # the answers of a query tend to be found or missed together: four count about as much as one independent
    # answer
    proportions = tuple(
        Proportion.of(round(value * _CAPTION_TRIALS), _CAPTION_TRIALS, _CAPTION_TRIALS / 4)
        for value in recall
    )
    rows = _CAPTION_ROWS[-len(proportions) :]
    return CodeRecall(kind=kind, dims_per_byte=dims_per_byte, rows=rows, recall=proportions)


_CAPTION_ROWS, _CAPTION_TRIALS = (2_500, 10_000, 40_000), 5_000
CAPTION_RECALLS = KindRecalls(
    source="40,000 captions by all-MiniLM-L6-v2 (384 dimensions)",
    measured=tuple(
        _among_captions(name, dims_per_byte, recall)
        for name, kind in KINDS.items()
        for dims_per_byte, recall in kind.code_recall.items()
    ),
)
