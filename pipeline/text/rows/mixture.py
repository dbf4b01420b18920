"""Orders that mix several weighted sources in one training; seed and step alone decide each batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.text.rows.batches import GlobalBatch, Order
from pipeline.text.rows.roles import narrow_scores


def reduce_weights(weights: Sequence[int]) -> tuple[int, ...]:
    """Divide whole numbers by their greatest common divisor.

    Raises:
        ConfigError: a weight is below 1, or there are no weights.
    """
    if not weights or min(weights) < 1:
        raise ConfigError(
            "mixture",
            "a whole number of 1 or more as the weight of every source",
            ", ".join(map(str, weights)) or "no source",
            "set the weights",
        )
    divisor = gcd(*weights)
    return tuple(weight // divisor for weight in weights)


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
        """Sum of the sources' batches per epoch; sources of greater weight repeat rows within these steps."""
        return sum(order.steps_per_epoch for order in self.orders)

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """Yield the batch of step `start` and all later ones, without end.

        Each source begins at the batch that it had reached before step `start`.
        """
        first_cycle, done = divmod(start, sum(self.weights))
        done_by_source = np.bincount(self._cycle(first_cycle)[:done], minlength=len(self.orders))
        streams = [
            order.batches(first_cycle * weight + int(done_in_cycle))
            for order, weight, done_in_cycle in zip(self.orders, self.weights, done_by_source, strict=True)
        ]
        sources = chain.from_iterable(map(self._cycle, count(first_cycle)))
        yield from (next(streams[source]) for source in islice(sources, done, None))

    def _cycle(self, number: int) -> np.ndarray:
        """(sum of weights,) int64: the source of each step of cycle `number`."""
        sources = np.repeat(np.arange(len(self.orders)), self.weights)
        return np.random.default_rng((self.seed, number)).permutation(sources)


@dataclass(frozen=True)
class BlendedOrder:
    """Batches that mix rows of all sources in the same proportions.

    Each batch joins one batch of every source. The rows of the sources are numbered one source after another.
    """

    orders: tuple[Order, ...]
    roles: tuple[str, ...]
    """the columns to read; every source has them"""
    rows: tuple[int, ...]
    """rows of each source, including rows that are not used for training"""
    seed: int = 0

    @property
    def batch_rows(self) -> int:
        """Rows of every batch, of all sources together."""
        return sum(order.batch_rows for order in self.orders)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches that have as many rows as an epoch of every source together."""
        return sum(order.steps_per_epoch * order.batch_rows for order in self.orders) // self.batch_rows

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """Yield the batch of step `start` and all later ones; an exhausted source begins its next epoch."""
        first_rows = np.cumsum([0, *self.rows[:-1]]).tolist()
        batches_of_step = zip(*(order.batches(start) for order in self.orders), strict=True)
        for step, batches in enumerate(batches_of_step, start):
            tables = (
                narrow_scores(batch.table.select(list(self.roles))).append_column(
                    "row", pc.add(batch.table["row"], first)
                )
                for batch, first in zip(batches, first_rows, strict=True)
            )
            shuffled = np.random.default_rng((self.seed, step)).permutation(self.batch_rows)
            yield GlobalBatch(
                " + ".join(batch.source for batch in batches),
                pa.concat_tables(tables).combine_chunks().take(shuffled),
                exchanged=sum(batch.exchanged for batch in batches),
                masks_false_negatives=any(batch.masks_false_negatives for batch in batches),
            )


def rows_per_source(batch_rows: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Rows of each source in a blended batch.

    Raises:
        ConfigError: the rows of a batch cannot be divided exactly in the proportions of the weights.
    """
    weights = reduce_weights(weights)
    total = sum(weights)
    if batch_rows % total:
        raise ConfigError(
            "mixture",
            f"batches that the weights {', '.join(map(str, weights))} divide exactly",
            f"{batch_rows} rows",
            f"set the batch to a multiple of {total}, or other weights",
        )
    return tuple(weight * (batch_rows // total) for weight in weights)
