"""Several sources in one training, each by its weight: which one a step is of follows from seed and step alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count
from math import gcd

import numpy as np
import pyarrow as pa

from pipeline.errors import ConfigError
from pipeline.text.rows.batches import GlobalBatch, Order


def weights_of(weights: Sequence[int]) -> tuple[int, ...]:
    """The smallest whole numbers of the same proportions. ConfigError for one below 1, or none at all."""
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
    """Batches of one source each. In a cycle of as many steps as the weights sum up to, each source has as many as its weight, in an order drawn anew for each cycle."""

    orders: tuple[Order, ...]
    weights: tuple[int, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _fitting(self.orders, self.weights))
        if len(sizes := {order.batch_rows for order in self.orders}) > 1:
            raise ConfigError(
                "mixture",
                "batches of one size from all sources",
                ", ".join(map(str, sorted(sizes))),
                "set one",
            )

    @property
    def batch_rows(self) -> int:
        return self.orders[0].batch_rows

    @property
    def steps_per_epoch(self) -> int:
        """As many as the sources have together, though one of greater weight has begun another epoch of its own by then."""
        return sum(order.steps_per_epoch for order in self.orders)

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """That of step `start` and all later ones, without end; each source is begun where it has to go on."""
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
        """(sum of weights,) int64: the source of each of its steps."""
        sources = np.repeat(np.arange(len(self.orders)), self.weights)
        return np.random.default_rng((self.seed, number)).permutation(sources)


@dataclass(frozen=True)
class BlendedOrder:
    """Batches of rows of all sources, each batch in the same proportions: they are those of the sources' own batches. Rows are numbered one source after the other."""

    orders: tuple[Order, ...]
    roles: tuple[str, ...]
    """that are read; every source has them"""
    rows: tuple[int, ...]
    """of each source, with those that are left out: a row's number begins after those of the sources before"""
    seed: int = 0

    @property
    def batch_rows(self) -> int:
        return sum(order.batch_rows for order in self.orders)

    @property
    def steps_per_epoch(self) -> int:
        """As many as have as many rows as the sources together."""
        return sum(order.steps_per_epoch * order.batch_rows for order in self.orders) // self.batch_rows

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """That of step `start` and all later ones, without end; a source that is exhausted begins its next epoch."""
        before = np.cumsum([0, *self.rows[:-1]])
        for step, parts in enumerate(
            zip(*(order.batches(start) for order in self.orders), strict=True), start
        ):
            tables = [
                self._numbered(part.table, int(first)) for part, first in zip(parts, before, strict=True)
            ]
            turn = np.random.default_rng((self.seed, step)).permutation(self.batch_rows)
            table = pa.concat_tables(tables).combine_chunks().take(turn)
            yield GlobalBatch(
                " + ".join(part.source for part in parts),
                table,
                sum(part.exchanged for part in parts),
                any(part.mask for part in parts),
            )

    def _numbered(self, table: pa.Table, first: int) -> pa.Table:
        return table.select(list(self.roles)).append_column("row", pa.array(table["row"].to_numpy() + first))


def parts_of(batch_rows: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Rows that each source has in a blended batch. ConfigError where the proportions are not exact."""
    weights = weights_of(weights)
    whole = sum(weights)
    if batch_rows % whole:
        remedy = f"set the batch to a multiple of {whole}, or other weights"
        raise ConfigError(
            "mixture",
            f"batches that the weights {', '.join(map(str, weights))} divide exactly",
            f"{batch_rows} rows",
            remedy,
        )
    return tuple(weight * (batch_rows // whole) for weight in weights)


def _fitting(orders: Sequence[Order], weights: Sequence[int]) -> tuple[int, ...]:
    if len(orders) != len(weights):
        raise ConfigError(
            "mixture",
            f"a weight for each of {len(orders)} sources",
            f"{len(weights)}",
            "give every source one",
        )
    return weights_of(weights)
