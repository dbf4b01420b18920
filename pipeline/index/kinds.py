"""Which index a corpus gets: the most exact kind that fits the searcher's memory.

A plan is a value and needs faiss only where a factory string is named.
"""

import math
from dataclasses import dataclass
from typing import Literal

from pipeline.config import Settings
from pipeline.errors import ConfigError, DataError
from pipeline.settings import INDEX_KINDS, IndexSettings

GIB = 2**30
ROWS_PER_LIST = 39  # faiss: fewer training rows for one centroid make k-means overfit
CODEWORDS = 256  # centroids of one 8-bit sub-quantizer
FLAT_VALUES = (
    2**22
)  # 16 MiB of float32: one core reads it in a millisecond or two, so an approximate index gains nothing
LARGE_NLIST = 2**14  # from here, finding the lists by brute force costs more than scanning them
HNSW_LINKS = 32
_ID_BYTES = 8
_ID_MAP_BYTES = 40  # one node and one bucket of the hash map from id to place, in memory only
_HNSW_BYTES = (
    4 * 2 * HNSW_LINKS + 4 * 2 + 4 + 8
)  # links of the lowest level, of those above on average, level, offset
_PER_CODE = 8  # components that one byte of a product-quantizer code stands for, where nothing else is asked


class IndexPlan(Settings):
    """What will be built, how large it becomes, and why.

    `dim` is that of the indexed vectors: after whitening, before a rotation of the factory's own.
    """

    kind: Literal["flat", "ivf_flat", "ivf_sq8", "opq_ivf_pq", "hnsw", "factory"]
    factory: str
    """faiss factory string of the part behind the whitening and the normalisation"""
    metric: Literal["inner_product"] = "inner_product"
    dim: int
    nlist: int = 0
    """lists of an IVF index; 0: none"""
    train_rows: int = 0
    """rows of the training sample; 0: nothing to train"""
    file_bytes: int
    memory_bytes: int
    on_disk: bool = False
    """the lists stay in a file of their own"""
    shardable: bool = True
    """parts can be filled apart and merged"""
    removable: bool = True
    """rows can be taken out again"""
    why: str


@dataclass(frozen=True)
class _Size:
    """Bytes of a kind: of one row's code, of the id map in memory, and of everything that rows do not change."""

    row: int
    fixed: int
    mapped: bool

    def file(self, rows: int) -> int:
        return rows * (self.row + _ID_BYTES) + self.fixed

    def memory(self, rows: int) -> int:
        return self.file(rows) + rows * _ID_MAP_BYTES * self.mapped


def plan_index(rows: int, dim: int, settings: IndexSettings) -> IndexPlan:
    """The index for `rows` vectors of `dim` components.

    ConfigError where the named kind cannot be built for them; DataError for no rows.
    """
    if rows < 1:
        raise DataError("index", "at least one vector", "none", "check the corpus and its quarantine")
    if settings.kind == "auto":
        return _auto(rows, dim, settings)
    if settings.kind in INDEX_KINDS:
        return _plan(settings.kind, rows, dim, settings, "index.kind names it")
    return _factory_plan(rows, dim, settings)


def _auto(rows: int, dim: int, settings: IndexSettings) -> IndexPlan:
    if rows * dim <= FLAT_VALUES and settings.on_disk != "always":
        return _plan(
            "flat",
            rows,
            dim,
            settings,
            f"{rows:,} x {dim} values are searched whole in a millisecond or two, and exactly",
        )
    in_memory = settings if settings.on_disk == "always" else settings.model_copy(update={"on_disk": "never"})
    why = "the most exact kind that is fast at this size, and it fits index.memory_gib"
    for kind, per_code in (choices := _choices(rows, settings)):
        plan = _plan(kind, rows, dim, in_memory, why, per_code)
        if plan.on_disk or plan.memory_bytes <= settings.memory_gib * GIB:
            return plan
        why = (
            f"{plan.factory} would take {plan.memory_bytes / GIB:.2f} GiB of the {settings.memory_gib:g} "
            "that index.memory_gib allows"
        )
    kind, per_code = choices[-1]
    return _plan(kind, rows, dim, settings, f"the smallest kind; even {why}", per_code)


def _choices(rows: int, settings: IndexSettings) -> list[tuple[str, int]]:
    """Kinds from exact to small; with product quantizers the components that one byte stands for."""
    if _train_rows(rows, 1, settings) < ROWS_PER_LIST * CODEWORDS:
        return [("ivf_flat", _PER_CODE), ("ivf_sq8", _PER_CODE)]
    return [
        ("ivf_flat", _PER_CODE),
        ("ivf_sq8", _PER_CODE),
        *(("opq_ivf_pq", per_code) for per_code in (4, 8, 16)),
    ]


def _plan(
    kind: str, rows: int, dim: int, settings: IndexSettings, why: str, per_code: int = _PER_CODE
) -> IndexPlan:
    nlist = _nlist(rows, settings) if "ivf" in kind else 0
    train_rows = _train_rows(rows, nlist, settings) if nlist else 0
    if kind == "opq_ivf_pq" and train_rows < CODEWORDS:
        raise _too_few("index.kind: opq_ivf_pq", CODEWORDS, train_rows)
    parts = math.ceil(dim / per_code)
    size = _size(kind, dim, nlist, parts)
    on_disk = _on_disk(size.memory(rows), settings, ivf=nlist > 0, where=f"index.kind: {kind}")
    return IndexPlan(
        kind=kind,
        factory=_factory(kind, nlist, parts, per_code),
        dim=dim,
        nlist=nlist,
        train_rows=train_rows,
        file_bytes=size.file(rows),
        memory_bytes=size.fixed if on_disk else size.memory(rows),
        on_disk=on_disk,
        shardable=kind != "hnsw",
        removable=kind != "hnsw",
        why=why,
    )


def _factory(kind: str, nlist: int, parts: int, per_code: int) -> str:
    coarse = f"IVF{nlist}" + (f"_HNSW{HNSW_LINKS}" if nlist >= LARGE_NLIST else "")
    rotated = parts * per_code  # a product quantizer wants equal parts; the rotation pads
    # np: no polysemous ordering of the codes, which nothing here uses and which takes longer than all other
    # training
    return {
        "flat": "Flat",
        "ivf_flat": f"{coarse},Flat",
        "ivf_sq8": f"{coarse},SQ8",
        "opq_ivf_pq": f"OPQ{parts}_{rotated},{coarse},PQ{parts}x8np",
        "hnsw": f"HNSW{HNSW_LINKS}",
    }[kind]


def _size(kind: str, dim: int, nlist: int, parts: int) -> _Size:
    coarse = nlist * (4 * dim + (_HNSW_BYTES if nlist >= LARGE_NLIST else 0))
    return {
        "flat": _Size(4 * dim, 0, mapped=True),
        "ivf_flat": _Size(4 * dim, coarse, mapped=False),
        "ivf_sq8": _Size(dim, coarse + 8 * dim, mapped=False),
        "opq_ivf_pq": _Size(parts, coarse + 4 * dim * (dim + CODEWORDS), mapped=False),
        "hnsw": _Size(4 * dim + _HNSW_BYTES, 0, mapped=True),
    }[kind]


def _nlist(rows: int, settings: IndexSettings) -> int:
    """About 4 sqrt(rows), with at least 39 training rows a list; a named number is taken as long as it can be
    trained at all.
    """
    if settings.nlist is not None:
        if (found := _train_rows(rows, settings.nlist, settings)) < settings.nlist:
            raise _too_few(f"index.nlist: {settings.nlist}", settings.nlist, found)
        return settings.nlist
    wanted = round(4 * math.sqrt(rows))
    return max(1, min(wanted, _train_rows(rows, wanted, settings) // ROWS_PER_LIST))


def _train_rows(rows: int, nlist: int, settings: IndexSettings) -> int:
    return min(rows, settings.train_rows or max(20_000, 64 * nlist))


def _too_few(where: str, needed: int, found: int) -> ConfigError:
    return ConfigError(
        where,
        f"at least {needed:,} rows to train on",
        f"{found:,}",
        "choose kind auto or flat, fewer lists, or raise index.train_rows",
    )


def _on_disk(memory_bytes: int, settings: IndexSettings, *, ivf: bool, where: str) -> bool:
    if settings.on_disk == "always" and not ivf:
        raise ConfigError(
            where,
            "an IVF kind, because index.on_disk is always",
            "one without lists",
            "name ivf_flat, ivf_sq8 or opq_ivf_pq, or auto",
        )
    return ivf and (
        settings.on_disk == "always"
        or (settings.on_disk == "auto" and memory_bytes > settings.memory_gib * GIB)
    )


def _factory_plan(rows: int, dim: int, settings: IndexSettings) -> IndexPlan:
    from pipeline.index.structure import inspect_factory  # the one plan that needs faiss

    found = inspect_factory(settings.kind, dim)
    least = max(found.nlist, found.codewords)
    train_rows = _train_rows(rows, found.nlist, settings) if found.trains else 0
    if found.trains and train_rows < max(1, least):
        raise _too_few(f"index.kind: {settings.kind}", least, train_rows)
    size = _Size(found.code_bytes, found.nlist * 4 * dim + found.trained_bytes, mapped=not found.nlist)
    on_disk = found.mappable and _on_disk(
        size.memory(rows), settings, ivf=found.nlist > 0, where=f"index.kind: {settings.kind}"
    )
    return IndexPlan(
        kind="factory",
        factory=settings.kind,
        dim=dim,
        nlist=found.nlist,
        train_rows=train_rows,
        file_bytes=size.file(rows),
        memory_bytes=size.fixed if on_disk else size.memory(rows),
        on_disk=on_disk,
        shardable=found.shardable,
        removable=found.removable,
        why="index.kind is a faiss factory string",
    )
