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
from pipeline.index.build.centroids import BLOCK_ROWS, CentroidGroups, ComparedCentroids, train_centroids
from pipeline.index.build.index_shape import IndexPlan
from pipeline.index.gpu import flat_index
from pipeline.index.library import faiss, prints_to_stderr
from pipeline.index.lists import is_one_of, remove_from_lists
from pipeline.index.measure.truth import Batches, ExactTopK, Neighbours
from pipeline.index.refine import add_to_refined, id_map_of, index_refine_of, remove_from_refined
from pipeline.index.structure import (
    graph_effort,
    graph_of,
    has_lists_on_disk,
    is_append_only,
    ivf_of,
    make_ann,
    nlist_of,
    transforms_of,
    unwrap,
)
from pipeline.settings.index_kinds import TWO_LEVEL_LISTS
from pipeline.store.rows.address import describe
from pipeline.transforms.transform import Affine

# If there are more lists than this for each row of a block, the graph is faster than groups of centroids.
_LISTS_PER_ROW = 32


class RowAdder:
    """Add rows to an index in order. `finish` adds the last ones.

    On GPUs, or with a graph of centroids, the lists of a block of rows are found together.
    On one thread, equal rows in equal batches give equal bytes.
    """

    def __init__(self, index: Any, *, on_gpu: bool = False) -> None:
        """Begin to add.

        Args:
            on_gpu: find the lists of rows on GPUs.
        """
        self._index, self._on_gpu = index, on_gpu
        in_blocks = (on_gpu or graph_of(index) is not None) and not is_append_only(index)
        self._ivf = ivf_of(index) if in_blocks else None
        self._centroids: CentroidGroups | ComparedCentroids | None = None
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, addresses: np.ndarray, vectors: np.ndarray) -> None:
        """Add raw vectors (n, d) float32 with their addresses (n,) int64, now or together with later rows."""
        if self._ivf is None:
            self._index.add_with_ids(vectors, addresses)
            return
        self._waiting.append((addresses, vectors))
        if sum(len(block) for block, _ in self._waiting) >= BLOCK_ROWS:
            self.finish()

    def finish(self) -> None:
        """Add the remaining rows."""
        if not self._waiting:
            return
        addresses, vectors = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        assert self._ivf is not None
        if len(vectors) * _LISTS_PER_ROW < self._ivf.nlist:
            self._index.add_with_ids(vectors, addresses)
        else:
            self._add_together(addresses, vectors)

    def _add_together(self, addresses: np.ndarray, vectors: np.ndarray) -> None:
        index, ivf = self._index, self._ivf
        assert ivf is not None
        if self._centroids is None:
            centroids = faiss.downcast_index(ivf.quantizer).reconstruct_n(0, ivf.nlist)
            on_gpu = self._on_gpu
            self._centroids = ComparedCentroids.of(centroids) if on_gpu else CentroidGroups.of(centroids)
        for transform in transforms_of(index):
            vectors = transform.apply(vectors)
        lists = self._centroids.nearest(vectors)
        if index_refine_of(index) is not None:
            add_to_refined(index, addresses, vectors, lists)
        else:
            ivf.add_core(
                len(vectors), faiss.swig_ptr(vectors), faiss.swig_ptr(addresses), faiss.swig_ptr(lists)
            )
            index.ntotal = ivf.ntotal


def reserve_rows(index: Any, rows: int) -> None:
    """Reserve memory for `rows` more rows in the arrays that have an entry per row.

    Otherwise faiss copies a full array to one of double size, and a flat or HNSW index takes up to three
    times its size while it grows. Inverted lists grow one by one, and nothing is reserved for them.
    """
    ann, refined = unwrap(index), index_refine_of(index)
    has_graph = hasattr(ann, "hnsw")
    coded = [ann.storage if has_graph else ann, *([refined.refine_index] if refined is not None else [])]
    for codes in map(faiss.downcast_index, coded):
        if isinstance(codes, faiss.IndexFlatCodes) and codes.codes.is_owned:
            _reserve(codes.codes, rows * codes.code_size)
    if has_graph:
        # A row has two entries per link in the lowest layer, and on average fewer than two in all other
        # layers.
        _reserve(ann.hnsw.neighbors, rows * (ann.hnsw.nb_neighbors(0) + 2))
    if (ids := id_map_of(index)) is not None:
        _reserve(ids.id_map, rows)


def _reserve(array: Any, more: int) -> None:
    """Reserve room for `more` entries in an array of C++, which keeps its memory when it is shortened."""
    size = array.size()
    array.resize(size + more)
    array.resize(size)


KMEANS_ROUNDS = 10  # the default of faiss for coarse quantizers


def _train_lists(index: Any, sample: np.ndarray, seed: int, *, on_gpu: bool) -> None:
    """Train the transforms, the centroids in two levels, and the codes of an IVF index.

    The result has the same form as after faiss's own training, which compares every row with every centroid.

    Args:
        sample: (n, d) float32, raw vectors.
        on_gpu: see `train_centroids`.
    """
    for transform in transforms_of(index):
        if not transform.is_trained:
            transform.train(sample)
        sample = transform.apply(sample)
    quantizer = faiss.downcast_index(unwrap(index).quantizer)
    quantizer.add(train_centroids(sample, nlist_of(index), KMEANS_ROUNDS, seed, on_gpu=on_gpu))
    if (graph := graph_of(index)) is not None:
        graph.hnsw.efSearch = graph_effort(1)
    _train_codes(index, sample)


def _train_codes(index: Any, sample: np.ndarray) -> None:
    """Train the codes of an index; its centroids stay as they are.

    Args:
        sample: (n, d) float32, after all transforms.
    """
    ivf, refined, id_map = unwrap(index), index_refine_of(index), id_map_of(index)
    # A RaBitQ code follows from the vector and its centroid, without training: one row is enough, and faiss
    # does not have to search the graph for the lists of all rows.
    ivf.train(sample[:1] if isinstance(ivf, faiss.IndexIVFRaBitQ) else sample)
    if refined is not None:
        faiss.downcast_index(refined.refine_index).train(sample)
    for outer in (refined, id_map, index):
        if outer is not None:
            outer.is_trained = True


# faiss does 50 iterations. After 20 the quantization error falls by less than 1 %, and all 50 would take
# most of the time of a build.
_OPQ_ROUNDS = 20
_MAX_PROBES = 32  # rows of a part that are searched for after a merge, to see that none is lost


@dataclass(frozen=True, eq=False)
class FillResult:
    """Number, exact neighbours and probes of the rows that `fill` added."""

    rows: int
    """number of added rows"""
    neighbours: Neighbours | None
    """the queries' exact neighbours among the added rows; None without queries"""
    probe_addresses: np.ndarray
    """(p,) int64, a few of the added rows, which are searched for after a merge"""
    probe_vectors: np.ndarray
    """(p, d) float32, their vectors"""


def train(
    plan: IndexPlan, transform: Affine | None, sample: np.ndarray, seed: int = 0, *, on_gpu: bool = False
) -> Any:
    """Train an empty index: whitening, L2 normalization, and the planned index with ids.

    The same sample, seed and number of threads give the same index.

    Args:
        sample: (n, d) float32, raw vectors.
        on_gpu: run k-means of lists and of product quantizers on GPUs, see `pipeline.index.gpu`. The index
            differs in its last bits, and is still an index for the CPU.

    Raises:
        DataError: the sample has NaN, infinity, zero vectors or the wrong dimension.
    """
    sample = _valid_vectors(np.arange(len(sample)), sample, "training sample")
    dim = sample.shape[1] if transform is None else len(transform.bias)
    if dim != plan.dim:
        raise DataError(
            "training sample",
            f"{plan.dim} dimensions, as planned",
            f"{dim}",
            "plan the index for the dimension after the transform",
        )
    index = _assemble(plan, transform)
    if not index.is_trained:
        with _training_settings(index, seed, on_gpu=on_gpu):
            # k-means of faiss is fast enough on a GPU, unless there are so many lists that they have a graph
            if graph_of(index) is not None or (nlist_of(index) >= TWO_LEVEL_LISTS and not on_gpu):
                _train_lists(index, sample, seed, on_gpu=on_gpu)
            else:
                index.train(sample)
    return index


def fill(
    index: Any, batches: Batches, truth: ExactTopK | None = None, *, rows: int = 0, on_gpu: bool = False
) -> FillResult:
    """Add all batches to a trained index, and find the exact neighbours of the queries of `truth` among them.

    Rows are added in the given order, so equal batches give equal bytes on one thread.

    Args:
        rows: number of rows in all batches, if it is known: memory for them is reserved.
        on_gpu: find the lists of rows on GPUs. A row that is about equally near to two lists may be added
            to a different one than on a CPU.

    Raises:
        DataError: vectors have NaN, infinity or another dimension, or are zero.
    """
    reserve_rows(index, rows)
    added = 0
    best = truth.empty() if truth else None
    probes: list[tuple[int, np.ndarray]] = []
    adder = RowAdder(index, on_gpu=on_gpu)
    for addresses, vectors in batches:
        vectors = _valid_vectors(addresses, vectors, "index", index.d)
        adder.add(np.ascontiguousarray(addresses, dtype=np.int64), vectors)
        if truth is not None and best is not None:
            best = truth.merge(best, truth.search([(addresses, vectors)]))
        probe_rows = np.linspace(0, len(addresses) - 1, min(_MAX_PROBES, len(addresses))).astype(int)
        probes += [(int(addresses[row]), vectors[row].copy()) for row in np.unique(probe_rows)]
        while len(probes) >= 2 * _MAX_PROBES:
            probes = probes[::2]  # keep every other probe, so that they remain spread over all rows
        added += len(addresses)
    adder.finish()
    return FillResult(
        added,
        best,
        np.array([address for address, _ in probes], dtype=np.int64),
        np.array([vector for _, vector in probes], dtype=np.float32).reshape(-1, index.d),
    )


def remove(index: Any, addresses: np.ndarray) -> int:
    """Remove rows, and return the number of them that were in the index. The order of the others stays.

    Raises:
        ConfigError: rows of this kind cannot be removed (HNSW, PQ fast-scan).
    """
    if is_append_only(index):
        raise ConfigError(
            "index",
            "a kind whose rows can be removed",
            type(unwrap(index)).__name__,
            "keep dead addresses as tombstones, or choose an IVF kind or flat",
        )
    if index_refine_of(index) is not None:
        return remove_from_refined(index, addresses)
    if (ivf := ivf_of(index)) is None:
        return int(index.remove_ids(np.ascontiguousarray(addresses, dtype=np.int64)))
    removed = remove_from_lists(ivf, is_one_of(addresses))
    index.ntotal = ivf.ntotal
    return removed


def write_index(index: Any, path: Path) -> None:
    """Write a file that faiss reads without this package."""
    faiss.write_index(index, str(path))


def read_index(path: Path, *, mapped: bool = True, on_disk: bool = False) -> Any:
    """Read a faiss file.

    An untrusted file is safe: faiss opens nothing outside the file's folder and nothing for writing.

    Args:
        mapped: map the rows into memory instead of copying them; a mapped index can only be searched.
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
    """Make PreTransform(whitening, normalization, the rotation of the factory string, index).

    Every component is handed over to C++, which frees it once. If Python also freed it, the process would
    crash at the next garbage collection.
    """
    ann = make_ann(plan.factory, plan.dim)
    has_rotation = isinstance(ann, faiss.IndexPreTransform)
    inner: Any = faiss.downcast_index(ann.index) if has_rotation else ann
    if index_refine_of(inner) is not None:
        inner = _take_ownership(faiss.IndexIDMap(inner), inner)  # IDMap2 would need 40 bytes of memory a row
    elif ivf_of(inner) is None:
        inner = _take_ownership(faiss.IndexIDMap2(inner), inner)
    if has_rotation:
        outer = ann
        outer.index = inner
        inner.this.disown()
    else:
        outer = _take_ownership(faiss.IndexPreTransform(inner), inner)
    reversed_components = [faiss.NormalizationTransform(plan.dim, 2.0)]
    if transform is not None:
        reversed_components.append(_linear_transform(transform))
    for component in reversed_components:
        component.this.disown()
        outer.prepend_transform(component)
    return outer


def _take_ownership(outer: Any, inner: Any) -> Any:
    """Return `outer` after making it the only owner of `inner`."""
    inner.this.disown()
    outer.own_fields = True
    return outer


def _linear_transform(transform: Affine) -> Any:
    matrix = np.ascontiguousarray(transform.matrix, dtype=np.float32)
    linear = faiss.LinearTransform(matrix.shape[1], matrix.shape[0], True)
    faiss.copy_array_to_vector(matrix.ravel(), linear.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(transform.bias, dtype=np.float32), linear.b)
    linear.is_trained = True
    return linear


@contextmanager
def _training_settings(index: Any, seed: int, *, on_gpu: bool) -> Iterator[None]:
    """Fix seed, iterations, sample size and device of every k-means for the duration of the block.

    faiss would otherwise train on a sample of the caller's sample.
    """
    ann = unwrap(index)
    rotations = [transform for transform in transforms_of(index) if isinstance(transform, faiss.OPQMatrix)]
    bits = ann.pq.nbits if hasattr(ann, "pq") else 8
    quantizers = [faiss.ProductQuantizer(rotation.d_out, rotation.M, bits) for rotation in rotations]
    for rotation, quantizer in zip(rotations, quantizers, strict=True):
        rotation.niter, rotation.pq = _OPQ_ROUNDS, quantizer
    if hasattr(ann, "pq"):
        quantizers.append(ann.pq)
    for component in (ann, *quantizers):
        if (clustering := getattr(component, "cp", None)) is not None:
            clustering.seed = seed
            clustering.max_points_per_centroid = 1 << 30  # no second sample
            clustering.min_points_per_centroid = 1  # no warning: the plan makes sure that there are enough
    # Indexes that faiss borrows: they must stay alive until it no longer refers to them.
    compared = [flat_index(each.dsub, on_gpu=True, metric=faiss.METRIC_L2) for each in quantizers if on_gpu]
    for quantizer, flat in zip(quantizers if on_gpu else (), compared, strict=True):
        quantizer.assign_index = flat
    if isinstance(ann, faiss.IndexIVF):
        ann.cp.niter = KMEANS_ROUNDS
        if on_gpu:  # not used with a graph, whose centroids are there already
            compared.append(flat_index(ann.d, on_gpu=True))
            ann.clustering_index = compared[-1]
    try:
        yield
    finally:
        for rotation in rotations:
            rotation.pq = None  # Python frees it as an element of `quantizers`
        for quantizer in quantizers:
            quantizer.assign_index = None
        if isinstance(ann, faiss.IndexIVF):
            ann.clustering_index = None


def _valid_vectors(
    addresses: np.ndarray, vectors: np.ndarray, where: str, dim: int | None = None
) -> np.ndarray:
    """Return vectors as (n, d) float32 in C order; raise DataError if one is not finite or is zero.

    faiss counts a NaN vector as a row but never returns it.
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
            f"{len(bad)} with NaN or infinity, or zero, the first at {describe(int(addresses[bad[0]]))}",
            "encode that unit again",
        )
    return vectors
