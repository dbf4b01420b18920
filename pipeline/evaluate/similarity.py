"""Similarity of sentence vectors, larger is closer: of paired rows, and of every row with every other a block at a time."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from pipeline.errors import ModelError
from pipeline.evaluate import Vectors

Similarity = Literal["cosine", "angular", "euclidean", "dot"]

_SMALLEST = 1e-12  # norms below: the zero vector, whose cosine with everything is 0

_DECIMALS = 12  # of cosines: pairs of equal texts tie at 1, which float64 misses by 1e-16 now and then


def vectors_of(vectors: Vectors, sentences: Sequence[str], where: str) -> np.ndarray:
    """(n, d) float32 of n sentences; ModelError for another shape or for values that are not finite."""
    x = np.asarray(vectors(sentences), np.float32)
    if x.ndim != 2 or len(x) != len(sentences):
        raise ModelError(
            where,
            f"one vector for each of {len(sentences):,} sentences",
            f"an array of shape {x.shape}",
            "mend what makes the vectors",
        )
    if not (finite := np.isfinite(x).all(axis=1)).all():
        found = f"values that are not finite in {np.count_nonzero(~finite):,} of {len(x):,}, first for {sentences[int(np.argmin(finite))][:80]!r}"
        raise ModelError(where, "finite vectors", found, "check the encoder and its transform")
    return x


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of x (n, d) at length one; a zero row stays zero."""
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), _SMALLEST))


def paired(kind: Similarity, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(n,) float64: similarity of row i of left with row i of right, both (n, d).

    cosine, 0 with a zero vector; angular: 1 - arccos(cosine) / pi (Cer et al. 2018, Universal Sentence Encoder); euclidean: minus the distance; dot.
    """
    left, right = left.astype(np.float64), right.astype(np.float64)
    if kind == "euclidean":
        return -np.asarray(np.linalg.norm(left - right, axis=1))
    if kind == "dot":
        return np.asarray(np.einsum("nd,nd->n", left, right))
    cosines = np.round(np.einsum("nd,nd->n", unit(left), unit(right)), _DECIMALS)
    return angular(cosines) if kind == "angular" else np.asarray(cosines)


def angular(cosines: np.ndarray) -> np.ndarray:
    """1 - arccos / pi of cosines of any shape. Rounding gives 1.0000001, whose arccos is not a number: hence the clip."""
    return np.asarray(1.0 - np.arccos(np.clip(cosines, -1.0, 1.0)) / np.pi)


def prepared(kind: Similarity, x: np.ndarray) -> np.ndarray:
    """x (n, d) as `crossed` wants it: unit rows for cosine and angular; float64 for euclidean, whose squares cancel."""
    if kind == "euclidean":
        return x.astype(np.float64)
    return x.astype(np.float32) if kind == "dot" else unit(x.astype(np.float64)).astype(np.float32)


def crossed(kind: Similarity, queries: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(q, t): similarity of every query (q, d) with every target (t, d), both prepared."""
    products = queries @ targets.T
    if kind == "euclidean":
        squares = np.einsum("qd,qd->q", queries, queries)[:, None] + np.einsum("td,td->t", targets, targets)
        return -np.sqrt(np.maximum(squares - 2.0 * products, 0.0))
    return angular(products) if kind == "angular" else np.asarray(products)
