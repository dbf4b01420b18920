"""Train an index once, fill parts of it, and read and write its files.

The published index takes the encoder's raw output: whitening and normalization are inside it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError
from pipeline.index.library import faiss, prints_to_stderr
from pipeline.index.plan import IndexPlan
from pipeline.index.structure import chain_of, has_lists_on_disk, is_fixed, ivf_of, make_ann, unwrap
from pipeline.index.truth import Batches, ExactTopK, Neighbours
from pipeline.post import Affine
from pipeline.store.address import describe

# faiss does 50; beyond 20 the error falls by less than 1 %, and training would take most of the build.
_OPQ_ROUNDS = 20
_PROBES = 32  # rows of a part that are searched for after the merge
_KMEANS_ROUNDS = 10  # faiss's own choice for coarse quantizers


@dataclass(frozen=True, eq=False)
class Filled:
    """Results of filling an index.

    Attributes:
        rows: number of added rows.
        neighbours: the queries' exact neighbours among them; None without queries.
        probe_addresses: (p,) int64, a few of the rows, to be searched for after a merge.
        probe_vectors: (p, d) float32.
    """

    rows: int
    neighbours: Neighbours | None
    probe_addresses: np.ndarray
    probe_vectors: np.ndarray


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let faiss use `count` threads for the duration of the block."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def train(plan: IndexPlan, transform: Affine | None, sample: np.ndarray, seed: int = 0) -> Any:
    """Train an empty index: whitening, L2 normalization, and the planned index with ids.

    The same sample, seed and number of threads give the same index.

    Args:
        sample: (n, d) float32, raw vectors.

    Raises:
        DataError: the sample has NaN, infinity, zero vectors or the wrong dimension.
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
        with _training_settings(index, seed), _on_gpus(ivf_of(index)):
            index.train(sample)
    return index


def fill(index: Any, batches: Batches, truth: ExactTopK | None = None) -> Filled:
    """Add all batches to a trained index, and find the queries' exact neighbours among them.

    Rows are added in their order, so equal batches give equal bytes on one thread.

    Raises:
        DataError: vectors have NaN, infinity or another dimension, or are zero.
    """
    rows, best = 0, truth.none() if truth else None
    probes: list[tuple[int, np.ndarray]] = []
    for addresses, vectors in batches:
        vectors = _checked(addresses, vectors, "index", index.d)
        index.add_with_ids(vectors, np.ascontiguousarray(addresses, dtype=np.int64))
        if truth is not None and best is not None:
            best = truth.merge(best, truth.of([(addresses, vectors)]))
        spread = np.linspace(0, len(addresses) - 1, min(_PROBES, len(addresses))).astype(int)
        probes += [(int(addresses[row]), vectors[row].copy()) for row in np.unique(spread)]
        while len(probes) >= 2 * _PROBES:
            probes = probes[::2]
        rows += len(addresses)
    return Filled(
        rows,
        best,
        np.array([address for address, _ in probes], dtype=np.int64),
        np.array([vector for _, vector in probes], dtype=np.float32).reshape(-1, index.d),
    )


def remove(index: Any, addresses: np.ndarray) -> int:
    """Remove rows and return how many of them the index held.

    Raises:
        ConfigError: rows of this kind cannot be removed (HNSW, PQ fast-scan).
    """
    if is_fixed(index):
        raise ConfigError(
            "index",
            "a kind whose rows can be removed",
            type(unwrap(index)).__name__,
            "keep dead addresses as tombstones, or choose an IVF kind or flat",
        )
    return int(index.remove_ids(np.ascontiguousarray(addresses, dtype=np.int64)))


def write_index(index: Any, path: Path) -> None:
    """Write a faiss file, which plain faiss can read."""
    faiss.write_index(index, str(path))


def read_index(path: Path, *, mapped: bool = True, on_disk: bool = False) -> Any:
    """Read a faiss file.

    Nothing outside its folder is opened, whatever path the file names, and nothing is opened for writing.

    Args:
        mapped: leave the rows in the page cache; such an index can only be searched.
        on_disk: the lists are in a second file in the same folder.

    Raises:
        DataError: faiss cannot read the file, or its lists are in a second file although `on_disk` is False.
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
        raise DataError(
            str(path),
            "an index that is one file",
            "lists in another file",
            "restore it, or build the index again",
        )
    return index


def _assemble(plan: IndexPlan, transform: Affine | None) -> Any:
    """Make PreTransform(whitening, normalization, a factory's own rotation, index).

    Every component is handed over to C++, which frees it once. If Python freed it too, the process would
    crash at the next garbage collection.
    """
    made = make_ann(plan.factory, plan.dim)
    has_rotation = isinstance(made, faiss.IndexPreTransform)
    inner: Any = faiss.downcast_index(made.index) if has_rotation else made
    if ivf_of(inner) is None:
        inner = _owned(faiss.IndexIDMap2(inner), inner)
    if has_rotation:
        outer = made
        outer.index = inner
        inner.this.disown()
    else:
        outer = _owned(faiss.IndexPreTransform(inner), inner)
    steps = [faiss.NormalizationTransform(plan.dim, 2.0)]
    if transform is not None:
        steps.append(_linear(transform))
    for step in steps:
        step.this.disown()
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
def _training_settings(index: Any, seed: int) -> Iterator[None]:
    """Fix everything that training would otherwise choose by itself.

    faiss draws no second sample from the caller's sample.
    """
    ann = unwrap(index)
    rotations = [step for step in chain_of(index) if isinstance(step, faiss.OPQMatrix)]
    bits = ann.pq.nbits if hasattr(ann, "pq") else 8
    quantizers = [faiss.ProductQuantizer(step.d_out, step.M, bits) for step in rotations]
    for rotation, quantizer in zip(rotations, quantizers, strict=True):
        rotation.niter, rotation.pq = _OPQ_ROUNDS, quantizer
    for trained in (ann, getattr(ann, "pq", None), *quantizers):
        if (clustering := getattr(trained, "cp", None)) is not None:
            clustering.seed = seed
            clustering.max_points_per_centroid = 1 << 30
            clustering.min_points_per_centroid = 1  # the plan makes sure that there are enough
    if isinstance(ann, faiss.IndexIVF):
        ann.cp.niter = _KMEANS_ROUNDS
    try:
        yield
    finally:
        for rotation in rotations:
            rotation.pq = None  # borrowed: freed with `quantizers`


@contextmanager
def _on_gpus(ivf: Any | None) -> Iterator[None]:
    """Run k-means of the coarse quantizer on all GPUs that faiss sees."""
    if ivf is None or not getattr(faiss, "get_num_gpus", int)():
        yield
        return
    assigner = faiss.index_cpu_to_all_gpus(faiss.IndexFlatIP(ivf.d))
    ivf.clustering_index = assigner  # borrowed by the index: `assigner` must stay alive until it is reset
    try:
        yield
    finally:
        ivf.clustering_index = None


def _checked(addresses: np.ndarray, vectors: np.ndarray, where: str, dim: int | None = None) -> np.ndarray:
    """Return vectors as (n, d) float32 in C order.

    faiss counts a NaN vector as a row but never returns it, so such vectors are refused.
    """
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
        raise DataError(
            where,
            "finite vectors, none of them zero",
            f"{len(bad)} others, the first of {describe(int(addresses[bad[0]]))}",
            "encode that unit again",
        )
    return vectors
