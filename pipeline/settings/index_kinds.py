"""The named kinds of index. A new kind is one entry of `KINDS`: plans, settings and messages follow from it.

Nothing here needs faiss, so that a night can be planned without loading it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

CODEWORDS = 256  # centroids of one 8-bit sub-quantizer
HNSW_LINKS = 32
# components that one byte of a product-quantizer code encodes, unless `auto` tries others
DIMS_PER_BYTE = 8
LARGE_NLIST = 2**14  # from here, finding the lists by brute force costs more than scanning them
# Links of the lowest level, links of the levels above on average, level, offset.
_HNSW_BYTES = 4 * 2 * HNSW_LINKS + 4 * 2 + 4 + 8


@dataclass(frozen=True)
class IndexShape:
    """Numbers that a kind's factory string and size follow from.

    Attributes:
        dim: dimension of the indexed vectors.
        nlist: number of inverted lists; 0 for a kind without lists.
        dims_per_byte: components that one byte of a product-quantizer code encodes.
    """

    dim: int
    nlist: int
    dims_per_byte: int

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
    """Size and abilities of an index, of a named kind or of a faiss factory string.

    Attributes:
        factory: faiss factory string of the part after whitening and normalization.
        row_bytes: bytes of a row without its id.
        fixed_bytes: bytes that do not depend on the number of rows: centroids, rotation, codebooks.
        nlist: number of inverted lists; 0 without lists.
        codewords: training rows that the product quantizer needs at least; 0 without one.
        trains: True if anything is trained.
        shardable: True if parts can be filled separately and merged.
        removable: True if rows can be removed, and others added afterwards.
        mappable: True if the lists can be in a file of their own.
    """

    factory: str
    row_bytes: int
    fixed_bytes: int
    nlist: int
    codewords: int
    trains: bool
    shardable: bool
    removable: bool
    mappable: bool


@dataclass(frozen=True)
class IndexKind:
    """A named kind of index.

    Attributes:
        factory: makes the faiss factory string.
        row_bytes: bytes of a row without its id.
        trained_bytes: bytes of rotation and codebooks.
        has_lists: True for an IVF index. `auto` tries the kinds with lists, in the order of `KINDS`.
        codewords: centroids of each sub-quantizer of a product quantizer; 0 without one.
        dims_per_byte_choices: values of `dims_per_byte` that `auto` tries, from exact to small.
        shardable: True if parts can be filled separately and merged.
        removable: True if rows can be removed, and others added afterwards.
    """

    factory: Callable[[IndexShape], str]
    row_bytes: Callable[[IndexShape], int]
    trained_bytes: Callable[[IndexShape], int] = lambda _: 0
    has_lists: bool = False
    codewords: int = 0
    dims_per_byte_choices: tuple[int, ...] = (DIMS_PER_BYTE,)
    shardable: bool = True
    removable: bool = True

    def layout(self, shape: IndexShape) -> IndexLayout:
        """Return the layout of an index of this kind and that shape."""
        return IndexLayout(
            factory=self.factory(shape),
            row_bytes=self.row_bytes(shape),
            fixed_bytes=shape.coarse_bytes + self.trained_bytes(shape),
            nlist=shape.nlist,
            codewords=self.codewords,
            trains=self.has_lists,
            shardable=self.shardable,
            removable=self.removable,
            mappable=self.has_lists,
        )


def _opq_factory(shape: IndexShape) -> str:
    """A product quantizer needs equal parts, so the rotation pads the vectors.

    np: without the polysemous order of the codes, which is not used and takes longest to train.
    """
    codes = shape.code_bytes
    return f"OPQ{codes}_{codes * shape.dims_per_byte},{shape.coarse},PQ{codes}x8np"


# From exact to small.
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
    ),
    "opq_ivf_pq": IndexKind(
        factory=_opq_factory,
        row_bytes=lambda shape: shape.code_bytes,
        trained_bytes=lambda shape: 4 * shape.dim * (shape.dim + CODEWORDS),
        has_lists=True,
        codewords=CODEWORDS,
        dims_per_byte_choices=(4, 8, 16),
    ),
    "hnsw": IndexKind(
        factory=lambda _: f"HNSW{HNSW_LINKS}",
        row_bytes=lambda shape: 4 * shape.dim + _HNSW_BYTES,
        shardable=False,
        removable=False,
    ),
}
INDEX_KINDS = ("auto", *KINDS)
