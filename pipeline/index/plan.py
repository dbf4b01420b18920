"""Plan the index of a corpus: the most exact kind that fits the searcher's memory.

faiss is loaded only to plan an index that is named by a factory string.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.config import Settings
from pipeline.errors import ConfigError, DataError
from pipeline.settings import IndexSettings
from pipeline.settings.index_kinds import DIMS_PER_BYTE, KINDS, IndexLayout, IndexShape

GIB = 2**30
ROWS_PER_LIST = 39  # faiss: with fewer training rows for one centroid, k-means overfits
# 16 MiB of float32: one core reads it in a millisecond or two, so an approximate index gains nothing.
FLAT_VALUES = 2**22
_ID_BYTES = 8
_ID_MAP_BYTES = 40  # one node and one bucket of the hash map from id to position, in memory only


class IndexPlan(Settings):
    """The index that will be built, its size, and the reason for it.

    `dim` is that of the indexed vectors: after whitening, before a rotation of the factory's own.
    """

    kind: str
    """a key of `KINDS`, or `factory`"""
    factory: str
    """faiss factory string of the part after whitening and normalization"""
    metric: Literal["inner_product"] = "inner_product"
    dim: int
    nlist: int = 0
    """number of inverted lists; 0 without lists"""
    train_rows: int = 0
    """rows of the training sample; 0 if nothing is trained"""
    file_bytes: int
    memory_bytes: int
    on_disk: bool = False
    """True if searchers map the inverted lists from a second file instead of loading them"""
    shardable: bool = True
    """True if parts can be filled separately and merged"""
    removable: bool = True
    """True if rows can be removed again"""
    why: str


def plan_index(rows: int, dim: int, settings: IndexSettings) -> IndexPlan:
    """Plan the index for `rows` vectors of `dim` components.

    Raises:
        ConfigError: the named kind cannot be built for them.
        DataError: there are no rows.
    """
    if rows < 1:
        raise DataError("index", "at least one vector", "none", "check the corpus and its quarantine")
    planner = _Planner(rows, dim, settings)
    if settings.kind == "auto":
        return planner.auto()
    if settings.kind in KINDS:
        return planner.named(settings.kind, "index.kind names it")
    from pipeline.index.structure import inspect_factory

    return planner.plan(
        "factory", inspect_factory(settings.kind, dim), "index.kind is a faiss factory string"
    )


@dataclass(frozen=True)
class _Planner:
    """Plans for `rows` vectors of `dim` components."""

    rows: int
    dim: int
    settings: IndexSettings

    def auto(self) -> IndexPlan:
        """Plan the most exact kind that fits the memory, or else the smallest kind."""
        settings = self.settings
        if self.rows * self.dim <= FLAT_VALUES and settings.on_disk != "always":
            return self.named(
                "flat",
                f"{self.rows:,} x {self.dim} values are searched whole in a millisecond or two, and exactly",
            )
        # a more exact kind is preferred to a smaller one only if it fits without a second file
        in_memory = self
        if settings.on_disk != "always":
            in_memory = replace(self, settings=settings.model_copy(update={"on_disk": "never"}))
        why = "the most exact kind that is fast at this size, and it fits index.memory_gib"
        least_train_rows = self._train_rows(1)  # as many as there are with any number of lists
        choices = [
            (name, dims_per_byte)
            for name, kind in KINDS.items()
            if kind.has_lists and least_train_rows >= ROWS_PER_LIST * kind.codewords
            for dims_per_byte in kind.dims_per_byte_choices
        ]
        for name, dims_per_byte in choices:
            plan = in_memory.named(name, why, dims_per_byte)
            if plan.on_disk or plan.memory_bytes <= settings.memory_gib * GIB:
                return plan
            why = (
                f"{plan.factory} would take {plan.memory_bytes / GIB:.2f} GiB of the "
                f"{settings.memory_gib:g} that index.memory_gib allows"
            )
        name, dims_per_byte = choices[-1]
        return self.named(name, f"the smallest kind; even {why}", dims_per_byte)

    def named(self, name: str, why: str, dims_per_byte: int = DIMS_PER_BYTE) -> IndexPlan:
        """Plan an index of the kind called `name`."""
        kind = KINDS[name]
        if self.settings.on_disk == "always" and not kind.has_lists:
            raise ConfigError(
                f"index.kind: {name}",
                "an IVF kind, because index.on_disk is always",
                "a kind without inverted lists",
                f"name {', '.join(name for name, kind in KINDS.items() if kind.has_lists)}, or auto",
            )
        return self.plan(
            name,
            kind.layout(IndexShape(self.dim, self._nlist() if kind.has_lists else 0, dims_per_byte)),
            why,
        )

    def plan(self, name: str, layout: IndexLayout, why: str) -> IndexPlan:
        """Plan an index of that layout.

        Raises:
            ConfigError: there are too few rows to train it.
        """
        settings, nlist = self.settings, layout.nlist
        train_rows = self._train_rows(nlist) if layout.trains else 0
        least = max(nlist, layout.codewords)
        if layout.trains and train_rows < least:
            raise _too_few(f"index.kind: {settings.kind if name == 'factory' else name}", least, train_rows)
        file_bytes = self.rows * (layout.row_bytes + _ID_BYTES) + layout.fixed_bytes
        memory_bytes = file_bytes if nlist else file_bytes + self.rows * _ID_MAP_BYTES
        too_large = settings.on_disk == "auto" and memory_bytes > settings.memory_gib * GIB
        on_disk = layout.mappable and (settings.on_disk == "always" or too_large)
        return IndexPlan(
            kind=name,
            factory=layout.factory,
            dim=self.dim,
            nlist=nlist,
            train_rows=train_rows,
            file_bytes=file_bytes,
            memory_bytes=layout.fixed_bytes if on_disk else memory_bytes,
            on_disk=on_disk,
            shardable=layout.shardable,
            removable=layout.removable,
            why=why,
        )

    def _nlist(self) -> int:
        """Number of lists: as set, or about 4 sqrt(rows) with at least 39 training rows for each.

        Raises:
            ConfigError: there are too few rows to train `index.nlist` lists.
        """
        if (nlist := self.settings.nlist) is not None:
            if (found := self._train_rows(nlist)) < nlist:
                raise _too_few(f"index.nlist: {nlist}", nlist, found)
            return nlist
        wanted = round(4 * math.sqrt(self.rows))
        return max(1, min(wanted, self._train_rows(wanted) // ROWS_PER_LIST))

    def _train_rows(self, nlist: int) -> int:
        return min(self.rows, self.settings.train_rows or max(20_000, 64 * nlist))


def _too_few(where: str, needed: int, found: int) -> ConfigError:
    return ConfigError(
        where,
        f"at least {needed:,} rows to train on",
        f"{found:,}",
        "choose kind auto or flat, fewer lists, or raise index.train_rows",
    )
