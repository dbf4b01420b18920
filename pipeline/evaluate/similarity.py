"""Similarity of vectors (larger is closer): of two arrays row by row, and of all queries with all targets."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.errors import ModelError
from pipeline.evaluate.task import Similarity, Vectors
from pipeline.stats.geometry import unit_rows

_COSINE_DECIMALS = 12  # rounding, so that all pairs of equal texts have a cosine of exactly 1


def vectors_of(vectors: Vectors, sentences: Sequence[str], where: str) -> np.ndarray:
    """Encode n sentences: (n, d) float32; ModelError for another shape or values that are not finite.

    Sparse vectors are returned as they are, in scipy's CSR format.
    """
    x = vectors(sentences)
    if is_sparse(x):
        return x
    x = np.asarray(x, np.float32)
    if x.ndim != 2 or len(x) != len(sentences):
        raise ModelError(
            where,
            f"one vector per sentence, for {len(sentences):,} sentences",
            f"an array of shape {x.shape}",
            "check the encoder and its transform",
        )
    if not (is_finite := np.isfinite(x).all(axis=1)).all():
        first = sentences[int(np.argmin(is_finite))][:80]
        raise ModelError(
            where,
            "finite vectors",
            f"NaN or infinity in {np.count_nonzero(~is_finite):,} of {len(x):,} vectors, first for {first!r}",
            "check the encoder and its transform",
        )
    return x


def is_sparse(x: object) -> bool:
    """Return whether x is a sparse matrix of scipy."""
    return hasattr(x, "tocsr")


def row_similarities(kind: Similarity, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute the similarity of row i of left with row i of right, both (n, d): (n,) float64.

    The cosine with a zero vector is 0. Angular similarity is 1 - arccos(cosine) / pi (Cer et al. 2018,
    Universal Sentence Encoder), Euclidean and Manhattan similarity are minus the distance, dot is the inner
    product. For sparse rows only the cosine is supported.

    >>> left, right = np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]])
    >>> [row_similarities(kind, left, right).round(4).item() for kind in ("cosine", "dot", "manhattan")]
    [0.96, 24.0, -2.0]
    """
    if is_sparse(left):
        products = _sparse_unit_rows(left).multiply(_sparse_unit_rows(right))
        return np.round(np.asarray(products.sum(axis=1), np.float64).ravel(), _COSINE_DECIMALS)
    left, right = left.astype(np.float64), right.astype(np.float64)
    if kind == "euclidean":
        return -np.asarray(np.linalg.norm(left - right, axis=1))
    if kind == "manhattan":
        return -np.asarray(np.abs(left - right).sum(axis=1))
    if kind == "dot":
        return np.asarray(np.einsum("nd,nd->n", left, right))
    cosines = np.round(np.einsum("nd,nd->n", unit_rows(left), unit_rows(right)), _COSINE_DECIMALS)
    return angular(cosines) if kind == "angular" else np.asarray(cosines)


def angular(cosines: np.ndarray) -> np.ndarray:
    """Convert cosines to 1 - arccos(cosine) / pi.

    Cosines are clipped, because rounding gives values like 1.0000001.
    """
    return np.asarray(1.0 - np.arccos(np.clip(cosines, -1.0, 1.0)) / np.pi)


def prepare_vectors(kind: Similarity, x: np.ndarray) -> np.ndarray:
    """Prepare x (n, d) for `similarity_matrix`: unit rows for cosine and angular, float64 for distances.

    A Euclidean distance is computed from squared norms and products, which would cancel in float32; scipy
    computes Manhattan distances in float64.
    """
    if is_sparse(x):
        return _sparse_unit_rows(x)
    if kind in ("euclidean", "manhattan"):
        return x.astype(np.float64)
    return x.astype(np.float32) if kind == "dot" else unit_rows(x).astype(np.float32)


def similarity_matrix(kind: Similarity, queries: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Compute the similarity of every query (q, d) with every target (t, d): (q, t).

    Both come from `prepare_vectors`.
    """
    if kind == "manhattan":
        from scipy.spatial.distance import cdist  # takes a second to import, and few tasks need it

        return -np.asarray(cdist(queries, targets, "cityblock"))
    products = queries @ targets.T
    if is_sparse(products):
        return np.asarray(products.toarray())
    if kind == "euclidean":
        squares = np.einsum("qd,qd->q", queries, queries)[:, None] + np.einsum("td,td->t", targets, targets)
        return -np.sqrt(np.maximum(squares - 2.0 * products, 0.0))
    return angular(products) if kind == "angular" else np.asarray(products)


def _sparse_unit_rows(x: np.ndarray) -> Any:
    """Normalize the rows of a sparse matrix to length 1; zero rows stay zero."""
    from sklearn.preprocessing import normalize  # takes a second to import

    return normalize(x)
