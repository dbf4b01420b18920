"""Several sources in one training, each with a weight; seed and step alone decide the source of a step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count
from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.text.rows.batches import GlobalBatch, Order


def reduce_weights(weights: Sequence[int]) -> tuple[int, ...]:
    """The smallest whole numbers in the same proportions. ConfigError if one is below 1 or there are none."""
    if not weights or min(weights) < 1:
        raise ConfigError(
            "mixture",
            "a whole number of 1 or more as the weight of every source",
            ", ".join(map(str, weights)) or "no source",
            "set the weights",
        )
    return tuple(weight // reduce(gcd, weights) for weight in weights)


@dataclass(frozen=True)
class AlternatingOrder:
    """Batches of one source each.

    A cycle has as many steps as the weights sum to. In each cycle every source has as many batches as its
    weight, in an order drawn for that cycle.
    """

    orders: tuple[Order, ...]
    weights: tuple[int, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.orders) != len(self.weights):
            raise ConfigError(
                "mixture",
                f"a weight for each of {len(self.orders)} sources",
                f"{len(self.weights)}",
                "give every source a weight",
            )
        object.__setattr__(self, "weights", reduce_weights(self.weights))
        if len(sizes := {order.batch_rows for order in self.orders}) > 1:
            raise ConfigError(
                "mixture",
                "batches of one size from all sources",
                ", ".join(map(str, sorted(sizes))),
                "set one size",
            )

    @property
    def batch_rows(self) -> int:
        """Rows of every batch, the same for all sources."""
        return self.orders[0].batch_rows

    @property
    def steps_per_epoch(self) -> int:
        """Batches of all sources together; a source with a greater weight has begun another epoch by then."""
        return sum(order.steps_per_epoch for order in self.orders)

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """Yield the batch of step `start` and all later ones, without end.

        Each source begins at the batch that it would have reached.
        """
        cycle, done = divmod(start, sum(self.weights))
        past = np.bincount(self._cycle(cycle)[:done], minlength=len(self.orders))
        streams = [
            order.batches(cycle * weight + int(before))
            for order, weight, before in zip(self.orders, self.weights, past, strict=True)
        ]
        for number in count(cycle):
            yield from (next(streams[source]) for source in self._cycle(number)[done:])
            done = 0

    def _cycle(self, number: int) -> np.ndarray:
        """(sum of weights,) int64: the source of each step of the cycle."""
        return np.random.default_rng((self.seed, number)).permutation(
            np.repeat(np.arange(len(self.orders)), self.weights)
        )


@dataclass(frozen=True)
class BlendedOrder:
    """Batches that mix rows of all sources in the same proportions.

    Each batch joins one batch of every source. Rows are numbered source after source.
    """

    orders: tuple[Order, ...]
    roles: tuple[str, ...]
    """the columns that are read; every source has them"""
    rows: tuple[int, ...]
    """rows of each source, those left out included; row numbers count the rows of earlier sources too"""
    seed: int = 0

    @property
    def batch_rows(self) -> int:
        """Rows of every batch, those of all sources together."""
        return sum(order.batch_rows for order in self.orders)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold as many rows as the sources have together."""
        return sum(order.steps_per_epoch * order.batch_rows for order in self.orders) // self.batch_rows

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """Yield the batch of step `start` and all later ones; an exhausted source begins its next epoch."""
        first_rows = np.cumsum([0, *self.rows[:-1]]).tolist()
        streams = zip(*(order.batches(start) for order in self.orders), strict=True)
        for step, parts in enumerate(streams, start):
            tables = (
                part.table.select(list(self.roles)).append_column("row", pc.add(part.table["row"], first))
                for part, first in zip(parts, first_rows, strict=True)
            )
            shuffled = np.random.default_rng((self.seed, step)).permutation(self.batch_rows)
            yield GlobalBatch(
                " + ".join(part.source for part in parts),
                pa.concat_tables(tables).combine_chunks().take(shuffled),
                sum(part.exchanged for part in parts),
                any(part.mask for part in parts),
            )


def rows_per_source(batch_rows: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Rows of each source in a blended batch. ConfigError if the proportions are not exact."""
    weights = reduce_weights(weights)
    whole = sum(weights)
    if batch_rows % whole:
        raise ConfigError(
            "mixture",
            f"batches that the weights {', '.join(map(str, weights))} divide exactly",
            f"{batch_rows} rows",
            f"set the batch to a multiple of {whole}, or other weights",
        )
    return tuple(weight * (batch_rows // whole) for weight in weights)
