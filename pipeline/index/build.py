"""An index trained once and filled in parts.

The published index takes the encoder's raw output: whitening and normalisation stand inside it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError
from pipeline.index.library import faiss, prints_to_stderr
from pipeline.index.plan import IndexPlan
from pipeline.index.structure import chain_of, has_lists_on_disk, is_fixed, ivf_of, make_ann, unwrap
from pipeline.index.truth import Batches, ExactTopK, Neighbours
from pipeline.post import Affine

_OPQ_ROUNDS = (
    20  # faiss does 50; beyond 20 the error falls by less than 1 % and training takes most of the build
)
_PROBES = 32  # rows of a part that are looked up after the merge
_KMEANS_ROUNDS = 10  # faiss's own choice for coarse quantizers


@dataclass(frozen=True, eq=False)
class Filled:
    """What filling left beside the index: rows added, the exact neighbours among them, and a few rows to look
    up after a merge.
    """

    rows: int
    neighbours: Neighbours | None
    probe_addresses: np.ndarray
    probe_vectors: np.ndarray


@contextmanager
def threads(count: int) -> Iterator[None]:
    """faiss works with `count` threads inside, and as before afterwards."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def train(plan: IndexPlan, transform: Affine | None, sample: np.ndarray, seed: int = 0) -> Any:
    """The empty, trained index of `plan`: whitening and L2 normalisation before the ANN index, ids in its
    lists or in a map around it.

    sample (n, d) float32: raw vectors; the same sample, seed and number of threads give the same index.
    DataError for a non-finite sample or a wrong dimension.
    """
    sample = _checked(np.arange(len(sample)), sample, "training sample")
    width = sample.shape[1] if transform is None else len(transform.bias)
    if width != plan.dim:
        raise DataError(
            "training sample",
            f"{plan.dim} dimensions, as planned",
            f"{width}",
            "plan the index for the vectors that the transform gives",
        )
    index = _assemble(plan, transform)
    if not index.is_trained:
        if len(sample) < max(1, plan.nlist):
            raise ConfigError(
                "index",
                f"at least {max(1, plan.nlist)} rows to train on",
                f"{len(sample)}",
                "lower index.nlist or choose kind flat",
            )
        with _settled(index, seed), _on_gpus(ivf_of(index)):
            index.train(sample)
    return index


def fill(index: Any, batches: Batches, truth: ExactTopK | None = None) -> Filled:
    """Add all batches to `index` (trained; it may hold rows already) and, in the same pass, find the queries'
    exact neighbours among them.

    Rows go in as they come, so equal batches give equal bytes on one thread. DataError for vectors that are
    non-finite, zero or of another dimension.
    """
    rows, best, probes = 0, truth.none() if truth else None, _Probes()
    for addresses, vectors in batches:
        vectors = _checked(addresses, vectors, "index", index.d)
        index.add_with_ids(vectors, np.ascontiguousarray(addresses, dtype=np.int64))
        if truth is not None and best is not None:
            best = truth.merge(best, truth.of([(addresses, vectors)]))
        probes.see(addresses, vectors)
        rows += len(addresses)
    return Filled(rows, best, *probes.chosen(index.d))


def remove(index: Any, addresses: np.ndarray) -> int:
    """Take rows out; how many were there.

    ConfigError for a kind that cannot (HNSW, PQ fast-scan): publish a delta and tombstones instead.
    """
    if is_fixed(index):
        found, remedy = (
            type(unwrap(index)).__name__,
            "keep dead addresses as tombstones, or choose an IVF kind or flat",
        )
        raise ConfigError("index", "a kind that can forget rows", found, remedy)
    return int(index.remove_ids(np.ascontiguousarray(addresses, dtype=np.int64)))


def write_index(index: Any, path: Path) -> None:
    """A plain faiss file, as faiss.read_index reads it."""
    faiss.write_index(index, str(path))


def read_index(path: Path, *, mapped: bool = True, on_disk: bool = False) -> Any:
    """The index of a file; DataError for a file that faiss cannot read, or whose lists are in a second file
    without `on_disk`.

    mapped: the rows stay in the page cache, for searching only. on_disk: the lists are in a second file in
        the same folder. Nothing outside that folder is opened, whatever path the file names, and nothing for
        writing.
    """
    flags = faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY
    if mapped and not on_disk:
        flags |= faiss.IO_FLAG_MMAP_IFC
    try:
        with prints_to_stderr() if on_disk else nullcontext():
            index = faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise DataError(
            str(path), "a faiss index", " ".join(str(error).split())[-200:], "build or fetch it again"
        ) from None
    if not on_disk and has_lists_on_disk(index):
        remedy = "restore it, or build the index again"
        raise DataError(str(path), "an index that is one file", "lists in another file", remedy)
    return index


def _assemble(plan: IndexPlan, transform: Affine | None) -> Any:
    """PreTransform(whitening, normalisation, a factory's own rotation, ANN).

    Everything is handed over to C++, which frees it once.
    """
    made = make_ann(plan.factory, plan.dim)
    outer: Any = made if isinstance(made, faiss.IndexPreTransform) else None
    inner: Any = faiss.downcast_index(outer.index) if outer is not None else made
    if ivf_of(inner) is None:
        inner = _owned(faiss.IndexIDMap2(inner), inner)
    if outer is None:
        outer = _owned(faiss.IndexPreTransform(inner), inner)
    else:
        outer.index = inner
        inner.this.disown()
    for step in [
        faiss.NormalizationTransform(plan.dim, 2.0),
        *([_linear(transform)] if transform is not None else []),
    ]:
        step.this.disown()  # else it is freed by Python and by the index: a crash at the next collection
        outer.prepend_transform(step)
    return outer


def _owned(outer: Any, inner: Any) -> Any:
    inner.this.disown()
    outer.own_fields = True
    return outer


def _linear(transform: Affine) -> Any:
    matrix = np.ascontiguousarray(transform.matrix, dtype=np.float32)
    linear = faiss.LinearTransform(matrix.shape[1], matrix.shape[0], True)
    faiss.copy_array_to_vector(matrix.ravel(), linear.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(transform.bias, dtype=np.float32), linear.b)
    linear.is_trained = True
    return linear


@contextmanager
def _settled(index: Any, seed: int) -> Iterator[None]:
    """Everything that training would otherwise choose by itself.

    The sample is the caller's, so no second sample is drawn from it.
    """
    ann = unwrap(index)
    rotations = [step for step in chain_of(index) if isinstance(step, faiss.OPQMatrix)]
    quantizers = [
        faiss.ProductQuantizer(step.d_out, step.M, ann.pq.nbits if hasattr(ann, "pq") else 8)
        for step in rotations
    ]
    for rotation, quantizer in zip(rotations, quantizers, strict=True):
        rotation.niter, rotation.pq = _OPQ_ROUNDS, quantizer
    for trained in (ann, getattr(ann, "pq", None), *quantizers):
        if (clustering := getattr(trained, "cp", None)) is not None:
            clustering.seed = seed
            clustering.max_points_per_centroid = 1 << 30
            clustering.min_points_per_centroid = 1  # the plan has seen to it
    if isinstance(ann, faiss.IndexIVF):
        ann.cp.niter = _KMEANS_ROUNDS
    try:
        yield
    finally:
        for rotation in rotations:
            rotation.pq = None  # borrowed: it goes with `quantizers`


@contextmanager
def _on_gpus(ivf: Any | None) -> Iterator[None]:
    """k-means of the coarse quantizer assigns on all GPUs, where faiss sees any."""
    if ivf is None or not getattr(faiss, "get_num_gpus", int)():
        yield
        return
    assigner = faiss.index_cpu_to_all_gpus(faiss.IndexFlatIP(ivf.d))
    ivf.clustering_index = assigner  # borrowed by the index: `assigner` lives until it is taken back
    try:
        yield
    finally:
        ivf.clustering_index = None


def _checked(addresses: np.ndarray, vectors: np.ndarray, where: str, dim: int | None = None) -> np.ndarray:
    """(n, d) float32 in C order. faiss counts a NaN vector as a row and never returns it, so none gets in."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(addresses) or (dim is not None and vectors.shape[1] != dim):
        raise DataError(
            where,
            f"({len(addresses)}, {dim or 'd'}) vectors",
            f"{vectors.shape}",
            "give one vector of the encoder's dimension for every address",
        )
    lengths = np.einsum("nd,nd->n", vectors, vectors)
    if len(bad := np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))):
        unit, row = divmod(int(addresses[bad[0]]), 1 << 32)
        raise DataError(
            where,
            "finite vectors, none of them zero",
            f"{len(bad)} others, the first of unit {unit}, row {row}",
            "encode that unit again",
        )
    return vectors


@dataclass(eq=False)
class _Probes:
    """A few rows of each batch, thinned to a fixed number spread over all of them."""

    addresses: list[int] = field(default_factory=list)
    vectors: list[np.ndarray] = field(default_factory=list)

    def see(self, addresses: np.ndarray, vectors: np.ndarray) -> None:
        for row in np.unique(np.linspace(0, len(addresses) - 1, min(_PROBES, len(addresses))).astype(int)):
            self.addresses.append(int(addresses[row]))
            self.vectors.append(vectors[row].copy())
        while len(self.addresses) >= 2 * _PROBES:
            self.addresses, self.vectors = self.addresses[::2], self.vectors[::2]

    def chosen(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.addresses, dtype=np.int64), np.array(self.vectors, dtype=np.float32).reshape(
            -1, dim
        )
