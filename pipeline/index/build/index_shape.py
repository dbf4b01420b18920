"""Plan the index of a corpus: a kind that fits the searcher's memory and whose recall was measured.

faiss is loaded only to plan an index that is named by a factory string.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.config import Settings
from pipeline.errors import ConfigError, DataError
from pipeline.index.measure.kind_recall import (
    CAPTION_RECALLS,
    KindRecalls,
    KindVariant,
    may_suffice,
    required_of_codes,
)
from pipeline.settings import IndexSettings
from pipeline.settings.index_kinds import KINDS, IndexLayout, IndexShape

GIB = 2**30
ROWS_PER_LIST = 39  # faiss: with fewer training rows for one centroid, k-means overfits
# If all vectors together have at most this many components, the index is exact: 2^22 of float32 are 16 MiB,
# which one core scans in a millisecond or two, so an approximate index would gain nothing.
MAX_FLAT_VALUES = 2**22
_ID_BYTES = 8  # per row
_HASH_MAP_BYTES = 40  # per row, in memory only: one node and one bucket of the map from id to row number


class IndexPlan(Settings):
    """The index that will be built, its size, and the reason for it.

    `dim` is the dimension after whitening and before any rotation that the factory string adds.
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
    """size of all index files"""
    memory_bytes: int
    """memory that a searcher needs"""
    on_disk: bool = False
    """True if searchers map the inverted lists from a second file instead of loading them"""
    part_rows: int = 0
    """largest number of rows of one file; 0 in plans of earlier versions, which have one file"""
    shardable: bool = True
    """True if parts can be filled separately and merged"""
    removable: bool = True
    """True if rows can be removed again"""
    why: str
    """the reason for this kind, for people"""

    def parts(self, rows: int) -> int:
        """Return the number of files for `rows` rows."""
        return -(-rows // self.part_rows) if self.part_rows else 1


def plan_index(
    rows: int,
    dim: int,
    settings: IndexSettings,
    recalls: KindRecalls = CAPTION_RECALLS,
    target: float = 0.95,
) -> IndexPlan:
    """Plan the index for `rows` vectors of `dim` components.

    Args:
        recalls: measured recalls, by which `auto` chooses among the kinds that compress vectors.
        target: recall@10 that the index has to reach, for `auto`.

    Raises:
        ConfigError: the named kind cannot be built for these vectors.
        DataError: there are no rows.
    """
    planner = _Planner(_valid_rows(rows), dim, settings)
    if settings.kind == "auto":
        return planner.plan_uncompressed() or planner.plan_compressed(recalls, target)
    if settings.kind in KINDS:
        return planner.plan_kind(KindVariant(settings.kind), "index.kind names it")
    from pipeline.index.structure import inspect_factory

    return planner.plan(
        "factory", inspect_factory(settings.kind, dim), "index.kind is a faiss factory string"
    )


def plan_variant(rows: int, dim: int, settings: IndexSettings, variant: KindVariant) -> IndexPlan:
    """Plan an index of a kind whose recall is to be measured."""
    return _Planner(_valid_rows(rows), dim, settings).plan_kind(variant, "a pilot")


def plan_extension(rows: int, dim: int, settings: IndexSettings, kind: str, factory: str) -> IndexPlan:
    """Plan an index that extends one of the given kind and factory string.

    If `auto` compresses vectors, it keeps the kind that it chose when the index was built. If that kind is
    not possible, it chooses by `CAPTION_RECALLS`.
    """
    planner = _Planner(_valid_rows(rows), dim, settings)
    if settings.kind == "auto" and planner.plan_uncompressed() is None:
        for variant in planner.variants():
            plan = planner.plan_kind(variant, "the kind that was chosen when the index was built")
            if plan.kind == kind and codes_of(plan.factory) == codes_of(factory):
                return plan
    return plan_index(rows, dim, settings)


def variants_to_measure(
    rows: int, dim: int, settings: IndexSettings, target: float
) -> tuple[KindVariant, ...]:
    """Return the kinds among which `auto` chooses by their recall; none if it need not compress vectors."""
    planner = _Planner(_valid_rows(rows), dim, settings)
    if settings.kind != "auto" or planner.plan_uncompressed() is not None:
        return ()
    return tuple(variant for variant in planner.variants() if may_suffice(variant, target))


def codes_of(factory: str) -> str:
    """Return the factory string without the coarse quantizer, whose size depends on the number of rows."""
    return re.sub(r"IVF\d+(_HNSW\d+)?", "IVF", factory)


@dataclass(frozen=True)
class _Planner:
    """Plans for `rows` vectors of `dim` components."""

    rows: int
    dim: int
    settings: IndexSettings

    def plan_uncompressed(self) -> IndexPlan | None:
        """Plan a kind that does not compress vectors; None if its index does not fit the memory."""
        settings = self.settings
        if self.rows * self.dim <= MAX_FLAT_VALUES and settings.on_disk != "always":
            return self.plan_kind(
                KindVariant("flat"),
                f"an exact scan of {self.rows:,} x {self.dim} values takes a millisecond or two",
            )
        why = "the most exact kind that is fast at this size, and it fits index.memory_gib"
        planner = self if settings.on_disk == "always" else self._in_memory()
        plan = planner.plan_kind(KindVariant("ivf_flat"), why)
        return plan if plan.on_disk or plan.memory_bytes <= settings.memory_gib * GIB else None

    def variants(self) -> tuple[KindVariant, ...]:
        """Return the kinds that compress vectors and can be trained on the rows."""
        min_train_rows = self._train_rows(1)  # the smallest sample: it grows with the number of lists
        return tuple(
            KindVariant(name, dims_per_byte)
            for name, kind in KINDS.items()
            if min_train_rows >= ROWS_PER_LIST * kind.codewords
            for dims_per_byte in kind.code_recall
        )

    def plan_compressed(self, recalls: KindRecalls, target: float) -> IndexPlan:
        """Plan the smallest kind that fits the memory and whose codes are exact enough.

        If no kind that is exact enough fits the memory, plan the one that needs the least memory. If no kind
        is exact enough, plan the most exact one.
        """
        expected = {
            variant: measured.expected(self.rows)
            for variant in self.variants()
            if (measured := recalls.of(variant)) is not None
        }
        required = required_of_codes(target)
        exact_enough = [variant for variant, recall in expected.items() if recall >= required]
        if exact_enough:
            chosen, reason = self._smallest(exact_enough)
        else:
            chosen = max(expected, key=lambda variant: expected[variant])
            reason = "no kind is exact enough; this is the most exact one"
        why = (
            f"{reason}: its codes are expected to find at least {expected[chosen]:.4f} of the ten nearest of "
            f"{self.rows:,} rows, where a recall@10 of {target:g} needs {required:.4g} (measured on "
            f"{recalls.source})"
        )
        return self.plan_kind(chosen, why)

    def _smallest(self, kinds: Sequence[KindVariant]) -> tuple[KindVariant, str]:
        """Return the kind with the smallest files among those that fit the memory, and the reason.

        If none fits, the kind that needs least memory is returned.
        """
        planner = self._in_memory()
        plans = {variant: planner.plan_kind(variant, "") for variant in kinds}
        limit = self.settings.memory_gib * GIB
        if fitting := [variant for variant, plan in plans.items() if plan.memory_bytes <= limit]:
            chosen = min(fitting, key=lambda variant: plans[variant].file_bytes)
            return chosen, "the smallest kind that is exact enough and fits index.memory_gib"
        chosen = min(plans, key=lambda variant: (plans[variant].memory_bytes, plans[variant].file_bytes))
        needed = plans[chosen].memory_bytes / GIB
        return chosen, f"the kind that needs least memory of those that are exact enough, {needed:.2f} GiB"

    def _in_memory(self) -> "_Planner":
        """Return a planner that keeps lists in memory: lists on disk make every search slower."""
        return replace(self, settings=self.settings.model_copy(update={"on_disk": "never"}))

    def plan_kind(self, variant: KindVariant, why: str) -> IndexPlan:
        """Plan an index of a named kind."""
        name, kind = variant.kind, KINDS[variant.kind]
        if self.settings.on_disk == "always" and not kind.mappable:
            raise ConfigError(
                f"index.kind: {name}",
                "an IVF kind without refinement, because index.on_disk is always",
                "a kind whose lists cannot be in a file of their own",
                f"name {', '.join(name for name, kind in KINDS.items() if kind.mappable)}, or auto",
            )
        shape = IndexShape(self.dim, self._nlist() if kind.has_lists else 0, variant.dims_per_byte)
        return self.plan(name, kind.layout(shape), why)

    def plan(self, name: str, layout: IndexLayout, why: str) -> IndexPlan:
        """Plan an index of the given layout, with lists on disk if `index.on_disk` asks for them.

        Raises:
            ConfigError: there are too few rows to train it.
        """
        settings, nlist = self.settings, layout.nlist
        train_rows = self._train_rows(nlist) if layout.trains else 0
        needed_rows = max(nlist, layout.codewords, layout.transform_rows)
        if layout.trains and train_rows < needed_rows:
            where = f"index.kind: {settings.kind if name == 'factory' else name}"
            raise _too_few_rows(where, needed_rows, train_rows)
        file_bytes = self.rows * (layout.row_bytes + _ID_BYTES) + layout.fixed_bytes
        memory_bytes = file_bytes - self.rows * layout.mapped_bytes
        if not nlist:
            memory_bytes += self.rows * _HASH_MAP_BYTES
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
            part_rows=max(1, int(settings.part_gib * GIB) // (layout.row_bytes + _ID_BYTES)),
            shardable=not layout.append_only,
            removable=not layout.append_only,
            why=why,
        )

    def _nlist(self) -> int:
        """Return `index.nlist`, or else about 4 sqrt(rows) lists with at least 39 training rows for each.

        Raises:
            ConfigError: there are too few rows to train `index.nlist` lists.
        """
        if (nlist := self.settings.nlist) is not None:
            if (found := self._train_rows(nlist)) < nlist:
                raise _too_few_rows(f"index.nlist: {nlist}", nlist, found)
            return nlist
        wanted = round(4 * math.sqrt(self.rows))
        return max(1, min(wanted, self._train_rows(wanted) // ROWS_PER_LIST))

    def _train_rows(self, nlist: int) -> int:
        """Return the size of the training sample for `nlist` lists."""
        return min(self.rows, self.settings.train_rows or max(20_000, 64 * nlist))


def _valid_rows(rows: int) -> int:
    if rows < 1:
        raise DataError("index", "at least one vector", "none", "check the corpus and its quarantine")
    return rows


def _too_few_rows(where: str, needed: int, found: int) -> ConfigError:
    return ConfigError(
        where,
        f"at least {needed:,} rows to train on",
        f"{found:,}",
        "choose kind auto or flat, fewer lists, or raise index.train_rows",
    )
