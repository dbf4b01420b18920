"""Place a sample of the rows of a release on a plane: by UMAP (an optional dependency), else by PCA."""

import asyncio
import importlib
import importlib.util
from functools import partial
from threading import Lock
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.daemon import in_daemon_thread
from pipeline.flows.rows import LiveRows, units_by_ordinal
from pipeline.index.files.texts import MissingTexts
from pipeline.index.search.search import OpenRelease

_ROWS = 1_500  # points that a browser draws at once, and that a person can still distinguish
_UMAP_NEIGHBOURS = 15  # the default of umap-learn
_STORED_SAMPLE = "train"  # the largest of the samples that encoding stores with a unit


class PlacedRows(NamedTuple):
    """Rows of a release on a plane."""

    release: int
    """number of the release"""
    method: str
    """UMAP or PCA"""
    variance: float | None
    """proportion of the vectors' variance that PCA shows; None for UMAP"""
    points: np.ndarray
    """(n, 2)"""
    rows: pa.Table
    """n rows: id, text if it can be read, and kept columns"""


class _Drawing(NamedTuple):
    """A map that a thread draws, or has drawn."""

    release: int
    placed: asyncio.Future[PlacedRows]


class SampleMap:
    """Caches the map of the release that was last requested. It is called in one event loop.

    A map is drawn once, in a thread of its own, however many requests wait: UMAP may take long.
    """

    def __init__(self) -> None:
        self._drawing: _Drawing | None = None
        # numba, on which UMAP is built, may end a process that uses it in two threads
        self._only_one = Lock()

    async def of(self, release: OpenRelease, wait_s: float) -> PlacedRows | None:
        """Return the map of a release; None if it is not drawn within `wait_s` seconds: ask again later.

        Raises:
            DataError: a unit of the release is missing or damaged. The next call tries again.
        """
        if self._drawing is None or self._drawing.release != release.number:
            self._drawing = _Drawing(
                release.number, asyncio.wrap_future(in_daemon_thread(partial(self._draw, release), "map"))
            )
        drawing = self._drawing
        await asyncio.wait({drawing.placed}, timeout=wait_s)
        if not drawing.placed.done():
            return None
        if drawing.placed.exception() is not None and self._drawing is drawing:
            self._drawing = None
        return drawing.placed.result()

    def _draw(self, release: OpenRelease) -> PlacedRows:
        with self._only_one:
            return _place(release)


def _place(release: OpenRelease) -> PlacedRows:
    manifest = release.manifest
    id_name = manifest.settings.get("corpus", {}).get("id", "id")
    live = LiveRows(release.releases.store, manifest.space_id, id_name, manifest.dead)
    addresses, vectors = live.sample(units_by_ordinal(manifest), _ROWS, _STORED_SAMPLE)
    try:
        rows = release.rows(addresses, texts=True)
    except MissingTexts:
        rows = release.rows(addresses)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    if importlib.util.find_spec("umap") and len(unit) > _UMAP_NEIGHBOURS:
        umap = importlib.import_module("umap").UMAP(_UMAP_NEIGHBOURS, metric="cosine", random_state=0)
        return PlacedRows(manifest.release, "UMAP", None, np.asarray(umap.fit_transform(unit)), rows)
    points, variance = _principal_plane(unit)
    return PlacedRows(manifest.release, "PCA", variance, points, rows)


def _principal_plane(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the first two principal components (n, 2) of vectors (n, d), and the proportion of the variance
    that they explain.
    """
    centred = vectors - vectors.mean(axis=0)
    _, spread, directions = np.linalg.svd(centred, full_matrices=False)
    directions = directions[:2]
    # the sign of a direction is arbitrary: its largest component is made positive
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    points = np.zeros((len(vectors), 2))
    points[:, : len(directions)] = centred @ (directions * signs[:, None]).T
    return points, float((spread[:2] ** 2).sum() / max((spread**2).sum(), 1e-12))
