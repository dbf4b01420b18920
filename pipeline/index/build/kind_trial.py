"""Measure the recall of compressed kinds of index on a sample of rows, to choose among them.

Each kind is trained on the sample, and a search visits all of its inverted lists, so that neighbours are
missed only because codes are not exact. How many lists a search of the whole index visits is decided later,
when that index is built; then neighbours in other lists are missed, too.

This module is separate from its only user, the tasks of `flows/index/`, because it loads faiss.
"""

import time
from dataclasses import dataclass

import numpy as np

from pipeline.index.build.build import fill, train
from pipeline.index.build.index_shape import plan_variant
from pipeline.index.library import faiss_threads
from pipeline.index.measure.kind_recall import CodeRecall, KindVariant
from pipeline.index.measure.recall import recall
from pipeline.index.measure.search_effort import set_effort
from pipeline.index.measure.truth import ExactTopK, Neighbours, Queries
from pipeline.index.structure import nlist_of
from pipeline.settings import IndexSettings
from pipeline.transforms.transform import Affine

PILOT_ROWS = 200_000
# Recall is measured among a sixteenth of the rows, a quarter and all. The recall among more rows is
# extrapolated from these three measurements.
_DIVISORS = (16, 4, 1)
_QUERIES = 500
# Fewer lists than the whole index has. With more lists, residuals are smaller and codes more exact, so the
# pilot does not overestimate recall.
_LISTS, _TRAIN_ROWS = 256, 50_000


@dataclass(frozen=True, eq=False)
class Pilot:
    """Sampled vectors, and the exact neighbours of some of them."""

    vectors: np.ndarray
    """(n, d) float32, raw vectors of the encoder, in random order"""
    truths: dict[int, Neighbours]
    """number n -> exact neighbours of the queries among the first n rows, for a few n"""
    transform: Affine | None
    """affine map that the index applies"""

    @classmethod
    def of(cls, vectors: np.ndarray, transform: Affine | None, seed: int = 0) -> "Pilot":
        """Shuffle the vectors, choose queries among them, and find their exact neighbours."""
        vectors = vectors[np.random.default_rng(seed).permutation(len(vectors))]
        top_k = ExactTopK(_queries(vectors), transform)
        truths, best, start = {}, top_k.empty(), 0
        for end in _sizes(len(vectors)):
            best = top_k.merge(best, top_k.search([(np.arange(start, end), vectors[start:end])]))
            truths[end], start = best, end
        return cls(vectors, truths, transform)

    def measure(self, variant: KindVariant, seed: int = 0) -> CodeRecall:
        """Train one kind on one thread, and measure the recall of its codes among growing numbers of rows."""
        settings = IndexSettings(
            nlist=max(1, min(_LISTS, len(self.vectors) // 39)),
            train_rows=min(_TRAIN_ROWS, len(self.vectors)),
            on_disk="never",
        )
        dim = self.vectors.shape[1] if self.transform is None else len(self.transform.bias)
        plan = plan_variant(len(self.vectors), dim, settings, variant)
        queries, recalls, scan_ns, start = _queries(self.vectors), [], 0.0, 0
        with faiss_threads(1):
            index = train(plan, self.transform, self.vectors[: plan.train_rows], seed)
            set_effort(index, nlist_of(index))
            for end, truth in self.truths.items():
                fill(index, [(np.arange(start, end), self.vectors[start:end])])
                began = time.perf_counter()
                recalls.append(recall(index, queries, truth, (10,))[10])
                scan_ns = 1e9 * (time.perf_counter() - began) / (len(queries) * end)
                start = end
        return CodeRecall(
            kind=variant.kind,
            dims_per_byte=variant.dims_per_byte,
            rows=tuple(self.truths),
            recall=tuple(recalls),
            scan_ns=round(scan_ns, 2),
        )


def _sizes(rows: int) -> list[int]:
    return sorted({max(1, rows // divisor) for divisor in _DIVISORS})


def _queries(vectors: np.ndarray) -> Queries:
    """Return the first rows as queries, since every sample contains them."""
    count = min(_QUERIES, _sizes(len(vectors))[0])
    return Queries(np.arange(count), vectors[:count])
