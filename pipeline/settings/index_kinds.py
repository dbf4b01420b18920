"""The named kinds of index. A new kind is one entry of `KINDS`, which everything else reads.

A refined kind has two codes of each row: a short one in memory chooses candidates, and a second one, in the
file, scores these again.

This module does not load faiss, so that a night can be planned quickly.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

CODEWORDS = 256  # centroids of one 8-bit sub-quantizer
HNSW_LINKS = 32  # links of a node on each level above the lowest, which has twice as many
# Vector components that one byte of a product-quantizer code encodes, unless `auto` chooses another length.
DIMS_PER_BYTE = 8
REFINED_BYTES = 8  # bytes of the position by which a refined kind finds a row's second code
# From so many lists on, finding the nearest ones by brute force costs more than scanning their rows.
LARGE_NLIST = 2**14
# From so many lists on, training in two levels takes less than half of the CPU time of k-means that compares
# every row with every centroid (tests/benchmarks/README.md).
TWO_LEVEL_LISTS = 2**10
# Bytes of a node: links of the lowest level, links of the levels above (on average), level, offset.
_HNSW_BYTES = 4 * 2 * HNSW_LINKS + 4 * 2 + 4 + 8


@dataclass(frozen=True)
class IndexShape:
    """Numbers from which a kind's factory string and size follow."""

    dim: int
    """dimension of the indexed vectors"""
    nlist: int
    """number of inverted lists; 0 for a kind without lists"""
    dims_per_byte: int
    """components that one byte of a product-quantizer code encodes"""

    @property
    def code_bytes(self) -> int:
        """Bytes of a product-quantizer code."""
        return math.ceil(self.dim / self.dims_per_byte)

    @property
    def coarse(self) -> str:
        """Factory string of the coarse quantizer."""
        return f"IVF{self.nlist}" + (f"_HNSW{HNSW_LINKS}" if self.nlist >= LARGE_NLIST else "")

    @property
    def coarse_bytes(self) -> int:
        """Bytes of the coarse quantizer."""
        return self.nlist * (4 * self.dim + (_HNSW_BYTES if self.nlist >= LARGE_NLIST else 0))


@dataclass(frozen=True)
class IndexLayout:
    """Size and properties of an index, of a named kind or of a faiss factory string."""

    factory: str
    """faiss factory string, without whitening and normalization"""
    row_bytes: int
    """bytes of a row without its id"""
    fixed_bytes: int
    """bytes that do not depend on the number of rows: centroids, rotation, codebooks"""
    nlist: int
    """number of inverted lists; 0 without lists"""
    codewords: int
    """centroids of each sub-quantizer, and therefore the least number of training rows; 0 without a product
    quantizer"""
    trains: bool
    """True if the index must be trained"""
    append_only: bool
    """True if rows cannot be removed, and parts cannot be filled separately and merged"""
    mappable: bool
    """True if the lists can be in a file of their own"""
    mapped_bytes: int = 0
    """bytes of a row that searchers leave in the file: the second codes of a refined kind"""
    transform_rows: int = 0
    """least number of training rows of the transforms in a factory string"""


@dataclass(frozen=True)
class IndexKind:
    """A named kind of index."""

    factory: Callable[[IndexShape], str]
    """makes the faiss factory string"""
    row_bytes: Callable[[IndexShape], int]
    """bytes of a row without its id"""
    trained_bytes: Callable[[IndexShape], int] = lambda _: 0
    """bytes of rotation and codebooks"""
    has_lists: bool = False
    """True for an IVF index. `auto` chooses `flat` or a kind with lists"""
    codewords: int = 0
    """centroids of each sub-quantizer of a product quantizer; 0 without one"""
    transform_rows: int = 0
    """least number of training rows of its transforms"""
    code_recall: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """`dims_per_byte` -> recall@10 of the codes among 2,500, 10,000 and 40,000 captions, or only the last,
    measured by `tests.benchmarks.index_kinds`; largest code first. A kind without a product quantizer has
    the key `DIMS_PER_BYTE` alone. `auto` chooses among these if it has to compress vectors; empty for a kind
    that does not, or has no lists"""
    mapped_bytes: Callable[[IndexShape], int] | None = None
    """bytes of a row's second code, which is read for the best candidates of a search only; None for a kind
    that is not refined"""
    append_only: bool = False
    """True if rows cannot be removed, and parts cannot be filled separately and merged"""

    @property
    def mappable(self) -> bool:
        """True if the lists can be in a file of their own."""
        return self.has_lists and self.mapped_bytes is None

    def layout(self, shape: IndexShape) -> IndexLayout:
        """Return the layout of an index of this kind and that shape."""
        return IndexLayout(
            factory=self.factory(shape),
            row_bytes=self.row_bytes(shape),
            fixed_bytes=shape.coarse_bytes + self.trained_bytes(shape),
            nlist=shape.nlist,
            codewords=self.codewords,
            trains=self.has_lists,
            append_only=self.append_only,
            mappable=self.mappable,
            mapped_bytes=self.mapped_bytes(shape) if self.mapped_bytes else 0,
            transform_rows=self.transform_rows,
        )


def _opq_factory(shape: IndexShape) -> str:
    """Return the factory string of a rotation, a coarse quantizer and a product quantizer.

    The rotation also pads the vectors, because a product quantizer needs sub-vectors of equal length. The
    suffix np leaves out the polysemous training, which takes longest and is not used.
    """
    codes = shape.code_bytes
    return f"OPQ{codes}_{codes * shape.dims_per_byte},{shape.coarse},PQ{codes}x8np"


def _rabitq_bytes(shape: IndexShape) -> int:
    """Return the size of a RaBitQ code in bytes (Gao and Long 2024): a bit per component, two numbers."""
    return (shape.dim + 7) // 8 + 8


# In the order in which messages list them.
KINDS = {
    "flat": IndexKind(
        factory=lambda _: "Flat",
        row_bytes=lambda shape: 4 * shape.dim,
    ),
    "ivf_flat": IndexKind(
        factory=lambda shape: f"{shape.coarse},Flat",
        row_bytes=lambda shape: 4 * shape.dim,
        has_lists=True,
    ),
    "ivf_sq8": IndexKind(
        factory=lambda shape: f"{shape.coarse},SQ8",
        row_bytes=lambda shape: shape.dim,
        trained_bytes=lambda shape: 8 * shape.dim,
        has_lists=True,
        code_recall={8: (0.9970, 0.9952, 0.9954)},
    ),
    "ivf_sq6": IndexKind(
        factory=lambda shape: f"{shape.coarse},SQ6",
        row_bytes=lambda shape: (6 * shape.dim + 7) // 8,
        trained_bytes=lambda shape: 8 * shape.dim,
        has_lists=True,
        code_recall={8: (0.9828, 0.9808, 0.9806)},
    ),
    "opq_ivf_pq": IndexKind(
        factory=_opq_factory,
        row_bytes=lambda shape: shape.code_bytes,
        trained_bytes=lambda shape: 4 * shape.dim * (shape.dim + CODEWORDS),
        has_lists=True,
        codewords=CODEWORDS,
        transform_rows=CODEWORDS,
        code_recall={4: (0.86,), 8: (0.78,), 16: (0.65,)},
    ),
    "ivf_rabitq_refine_fp16": IndexKind(
        factory=lambda shape: f"{shape.coarse},RaBitQ,Refine(SQfp16)",
        row_bytes=lambda shape: _rabitq_bytes(shape) + 2 * shape.dim + REFINED_BYTES,
        has_lists=True,
        mapped_bytes=lambda shape: 2 * shape.dim,
        code_recall={8: (0.9996, 0.9994, 0.9982)},
    ),
    "ivf_rabitq_refine": IndexKind(
        factory=lambda shape: f"{shape.coarse},RaBitQ,Refine(SQ8)",
        row_bytes=lambda shape: _rabitq_bytes(shape) + shape.dim + REFINED_BYTES,
        trained_bytes=lambda shape: 8 * shape.dim,
        has_lists=True,
        mapped_bytes=lambda shape: shape.dim,
        code_recall={8: (0.9960, 0.9940, 0.9936)},
    ),
    "hnsw": IndexKind(
        factory=lambda _: f"HNSW{HNSW_LINKS}",
        row_bytes=lambda shape: 4 * shape.dim + _HNSW_BYTES,
        append_only=True,
    ),
}
KIND_NAMES = ("auto", *KINDS)  # values of index.kind, besides factory strings
