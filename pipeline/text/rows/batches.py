"""Batches of training rows: whole ones as an order deals them out, and the part of each that one rank works on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.settings.training import TEXTS
from pipeline.text.rows.false_negatives import false_negatives, repeated
from pipeline.text.rows.roles import BLANK, COMPARED


@dataclass(frozen=True)
class GlobalBatch:
    """The rows of one step on all ranks. table: columns named by role, and `row`; exchanged: rows that came from another batch, in the place of one that went
    there; mask: whether false negatives are to be told."""

    source: str
    table: pa.Table
    exchanged: int = 0
    mask: bool = False

    def __len__(self) -> int:
        return int(self.table.num_rows)


class Order(Protocol):
    """The same rows in the same batches for everybody, whatever the number of ranks."""

    @property
    def batch_rows(self) -> int:
        """Rows of every global batch."""
        ...

    @property
    def steps_per_epoch(self) -> int: ...

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """That of step `start` and all later ones, epoch after epoch, without end."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one step on one rank."""

    columns: Mapping[str, Sequence[str] | np.ndarray]
    """role -> n texts, or (n,) numbers"""
    rows: np.ndarray
    """(n,) int64: their numbers in the source"""
    source: str
    counts: Mapping[str, int] = field(default_factory=dict)
    """of the global batch: repeated (rows that have a text with an earlier one in common), exchanged (rows that changed
    places with one of another batch, so that fewer are), blank (texts that were missing, or are one blank)"""
    false_negatives: Mapping[str, np.ndarray] = field(default_factory=dict)
    """role text or anchor -> (n, m) bool: candidate j, of all ranks or of this one, says the same as row i without being its own, as of
    `pipeline.text.rows.false_negatives.false_negatives`; nothing where it is not asked for"""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Share:
    """Which part of every global batch: the rank's of `world` equal ones."""

    rank: int = 0
    world: int = 1

    def bounds(self, batch_rows: int) -> tuple[int, int]:
        """First row and the one after the last. ConfigError where the batch cannot be shared equally."""
        if batch_rows % self.world:
            less, more = batch_rows - batch_rows % self.world, batch_rows + -batch_rows % self.world
            remedy = f"set it to {f'{less} or ' if less else ''}{more}, or the number of workers to a divisor of it"
            raise ConfigError(
                "batch",
                f"a number of rows that {self.world} workers can share equally",
                f"{batch_rows}",
                remedy,
            )
        size = batch_rows // self.world
        return self.rank * size, (self.rank + 1) * size


def share_of(order: Order, start: int, share: Share = Share(), *, together: bool = True) -> Iterator[Rows]:
    """This rank's rows of step `start` and all later ones, without end. together: whether other ranks' rows are candidates too, which may be false negatives.

    ConfigError where the batch cannot be shared equally.
    """
    first, last = share.bounds(order.batch_rows)
    return (_rows(batch, first, last, together) for batch in order.batches(start))


def _rows(batch: GlobalBatch, first: int, last: int, together: bool) -> Rows:
    own = batch.table.slice(first, last - first)
    columns = {
        role: own[role].to_pylist() if pa.types.is_large_string(own[role].type) else own[role].to_numpy()
        for role in own.column_names
        if role != "row"
    }
    candidates = (batch.table, first, last) if together else (own, 0, last - first)
    masked = false_negatives(*candidates) if batch.mask else {}
    return Rows(columns, own["row"].to_numpy(), batch.source, _counts(batch), masked)


def _counts(batch: GlobalBatch) -> dict[str, int]:
    table = batch.table
    compared = [role for role in COMPARED if role in table.column_names]
    blank = sum(pc.sum(pc.equal(table[role], BLANK)).as_py() for role in TEXTS if role in table.column_names)
    return {
        "repeated": int(repeated(table, compared).sum()) if compared else 0,
        "exchanged": batch.exchanged,
        "blank": blank,
    }
