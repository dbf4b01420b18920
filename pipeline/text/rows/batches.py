"""Batches of training rows: the global batch of each step, and the slice of it that one rank trains on."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipeline.errors import ConfigError
from pipeline.settings.training import NEGATIVES, TEXTS
from pipeline.store.rows.arrays import is_text, one_chunk
from pipeline.text.rows.false_negatives import (
    false_negatives,
    repeats_earlier_row,
    text_codes,
    without_missing,
)
from pipeline.text.rows.roles import COMPARED, is_blank


@dataclass(frozen=True)
class GlobalBatch:
    """The rows of one step on all ranks."""

    source: str
    table: pa.Table
    """columns named by role, and `row`"""
    exchanged: int = 0
    """rows that changed places with a row of another batch"""
    masks_false_negatives: bool = False
    """whether each rank gets a mask of its false negatives"""

    def __len__(self) -> int:
        return int(self.table.num_rows)


class Order(Protocol):
    """A sequence of global batches, the same for every rank and every number of ranks."""

    @property
    def batch_rows(self) -> int:
        """Rows of every global batch."""

    @property
    def steps_per_epoch(self) -> int:
        """Global batches of an epoch."""

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """Yield the batch of step `start` and all later ones, epoch after epoch, without end."""


@dataclass(frozen=True, eq=False)
class RankRows:
    """Rows of one step on one rank."""

    columns: Mapping[str, Sequence[str] | np.ndarray]
    """role -> n texts, (n,) numbers, or (n, k) numbers"""
    rows: np.ndarray
    """(n,) int64: numbers of the rows in the source"""
    source: str
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts of the global batch.

    repeated: rows that share a text with an earlier row; exchanged: rows that changed places with a row of
    another batch, to reduce the repeated ones; blank: texts that were missing or have white space only;
    without_negative: hard negatives that were missing or blank, and are therefore not candidates.
    """
    false_negatives: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Role (text, next, next3 or anchor) -> (n, m) bool: candidate j is a false negative of row i.

    The candidates are the m rows of all ranks, or of this rank only, and their hard negatives; see
    `false_negatives.false_negatives`. Empty if the batch needs no mask.
    """

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class RankSlice:
    """The part of every global batch that belongs to one rank: one of `world` equal slices."""

    rank: int = 0
    world: int = 1

    def bounds(self, batch_rows: int) -> tuple[int, int]:
        """(first row, end) of the slice. Raises ConfigError if the batch cannot be divided equally."""
        if batch_rows % self.world:
            below = batch_rows - batch_rows % self.world
            above = below + self.world
            sizes = f"{below} or {above}" if below else f"{above}"
            raise ConfigError(
                "train.order.batch_rows",
                f"a number of rows that {self.world} workers can share equally",
                f"{batch_rows}",
                f"set it to {sizes}, or the number of workers to a divisor of it",
            )
        size = batch_rows // self.world
        return self.rank * size, (self.rank + 1) * size


def rank_rows(
    order: Order, start: int, rank_slice: RankSlice = RankSlice(), *, across_ranks: bool = True
) -> Iterator[RankRows]:
    """Yield this rank's rows of step `start` and all later ones, without end.

    Args:
        order: yields the global batches.
        start: step of the first batch.
        rank_slice: this rank's slice of every batch.
        across_ranks: whether rows of other ranks are candidates too, so that they may be false negatives.

    Raises:
        ConfigError: the batch cannot be divided equally among the ranks.
    """
    first, end = rank_slice.bounds(order.batch_rows)
    return (_rows(batch, first, end, across_ranks) for batch in order.batches(start))


def _rows(batch: GlobalBatch, first: int, end: int, across_ranks: bool) -> RankRows:
    table = batch.table.slice(first, end - first)
    columns = {
        role: table[role].to_pylist() if is_text(table[role].type) else _numbers(table[role])
        for role in table.column_names
        if role != "row"
    }
    candidates = batch.table if across_ranks else table
    masks = {}
    if batch.masks_false_negatives:
        masks = false_negatives(candidates, *((first, end) if across_ranks else (0, len(table))))
    masks = without_missing(masks, candidates, len(table))
    return RankRows(columns, table["row"].to_numpy(), batch.source, _counts(batch), masks)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Return (n,) numbers, or (n, k) of lists with k numbers."""
    if not pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.to_numpy())
    flat = one_chunk(column).flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat).reshape(len(column), column.type.list_size)


def _counts(batch: GlobalBatch) -> dict[str, int]:
    table, roles = batch.table, batch.table.column_names
    compared = [role for role in COMPARED if role in roles]
    blank = Counter(
        "without_negative" if role in NEGATIVES and "anchor" in roles else "blank"
        for role in TEXTS
        if role in roles
        for text_is_blank in is_blank(table[role]).to_pylist()
        if text_is_blank
    )
    return {
        "repeated": int(repeats_earlier_row(text_codes(table, compared)).sum()) if compared else 0,
        "exchanged": batch.exchanged,
        "blank": 0,
        **blank,
    }
