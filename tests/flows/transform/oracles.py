"""Transforms of vectors in plain numpy and scikit-learn."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from sklearn.covariance import OAS

from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.rows.schema import vector_matrix

Map = Callable[[np.ndarray], np.ndarray]


def raw_vectors(root: str, manifest: ReleaseManifest) -> np.ndarray:
    return np.concatenate(
        [vector_matrix(pq.read_table(Path(root, unit.path))["vector"]) for unit in manifest.units]
    )


def without_top(x: np.ndarray, fit: np.ndarray, count: int) -> np.ndarray:
    top = np.linalg.svd(fit, full_matrices=False)[2][:count]
    return x - x @ top.T @ top


def sif(x: np.ndarray) -> Map:
    return lambda v: without_top(v, x, 1)


def standardized_without_top(x: np.ndarray) -> Map:
    def scaled(v: np.ndarray) -> np.ndarray:
        return (v - x.mean(axis=0)) / x.std(axis=0)

    return lambda v: without_top(scaled(v), scaled(x), 2)


def shrunken_zca(x: np.ndarray) -> Map:
    values, axes = np.linalg.eigh(OAS().fit(x).covariance_)
    return lambda v: (v - x.mean(axis=0)) @ axes @ np.diag(values**-0.5) @ axes.T
