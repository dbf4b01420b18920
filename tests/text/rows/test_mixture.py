"""Sources have exact proportions, in an order that follows from seed and step alone."""

from collections import Counter
from itertools import islice
from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.settings.training import OrderSettings, SourceSettings
from pipeline.text.rows.batches import RankRows, RankSlice, rank_rows
from pipeline.text.rows.mixture import AlternatingOrder, BlendedOrder, rows_per_source
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows

SIZES = (50, 23, 90)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[TrainingRows]:
    folder = tmp_path_factory.mktemp("sources")
    for number, size in enumerate(SIZES):
        pq.write_table(
            pa.table({"text": [f"{number} {row}" for row in range(size)]}),
            folder / f"{number}.parquet",
            row_group_size=20,
        )
    return [
        open_training_rows(SourceSettings(uri=str(folder / f"{number}.parquet")), ["text"])
        for number in range(len(SIZES))
    ]


def alternating(sources: list[TrainingRows], weights: tuple[int, ...], seed: int = 0) -> AlternatingOrder:
    return AlternatingOrder(
        tuple(ShuffledOrder(source, OrderSettings(batch_rows=6, window_rows=20)) for source in sources),
        weights,
        seed,
    )


def blended(sources: list[TrainingRows], parts: tuple[int, ...], seed: int = 0) -> BlendedOrder:
    orders = tuple(
        ShuffledOrder(source, OrderSettings(batch_rows=part, window_rows=20))
        for source, part in zip(sources, parts, strict=True)
    )
    return BlendedOrder(orders, ("text",), SIZES, seed)


def origins(rows: RankRows) -> list[int]:
    return [int(text[0]) for text in rows.columns["text"]]


@given(weights=st.tuples(*3 * [st.integers(1, 6)]), seed=st.integers(0, 3), start=st.integers(0, 40))
def test_each_cycle_has_sources_by_weight_and_any_step_can_be_the_first(
    sources: list[TrainingRows], weights: tuple[int, int, int], seed: int, start: int
):
    order = alternating(sources, weights, seed)
    smallest = [weight // gcd(*weights) for weight in weights]
    cycle = sum(smallest)
    steps = list(islice(rank_rows(order, 0), 3 * cycle + start))
    assert all(len(set(origins(step))) == 1 for step in steps)
    for first in range(0, 3 * cycle, cycle):
        assert Counter(origins(step)[0] for step in steps[first : first + cycle]) == Counter(
            dict(enumerate(smallest))
        )
    resumed = islice(rank_rows(order, start), len(steps) - start)
    for later, step in zip(resumed, steps[start:], strict=True):
        assert (later.source, later.columns["text"]) == (step.source, step.columns["text"])


def test_a_source_whose_rows_are_used_up_begins_its_next_epoch(sources: list[TrainingRows]):
    order = alternating(sources, (1, 2, 1))
    texts = [
        text
        for step in islice(rank_rows(order, 0), 24)
        if origins(step)[0] == 1
        for text in step.columns["text"]
    ]
    assert len(texts) == 12 * 6
    for first in range(0, 72, 18):  # an epoch of the source of 23 rows is 3 batches of 6
        assert len(set(texts[first : first + 18])) == 18
    assert order.steps_per_epoch == 50 // 6 + 23 // 6 + 90 // 6


def test_blended_batches_have_exact_proportions_and_shuffled_rows(sources: list[TrainingRows]):
    parts = rows_per_source(12, (1, 2, 3))
    assert parts == (2, 4, 6)
    order = blended(sources, parts)
    steps = list(islice(rank_rows(order, 0), 40))
    assert all(Counter(origins(step)) == {0: 2, 1: 4, 2: 6} for step in steps)
    assert len({tuple(origins(step)) for step in steps}) > 30
    for step in steps:  # row numbers continue from source to source
        first_rows = np.array([0, 50, 73])[origins(step)]
        assert [text.split()[1] for text in step.columns["text"]] == [
            str(row) for row in step.rows - first_rows
        ]
    halves = [list(islice(rank_rows(order, 17, RankSlice(rank, 2)), 23)) for rank in (0, 1)]
    for left, right, step in zip(*halves, steps[17:], strict=True):
        np.testing.assert_array_equal(np.concatenate([left.rows, right.rows]), step.rows)


def test_impossible_mixtures_are_refused(sources: list[TrainingRows]):
    with pytest.raises(ConfigError, match="multiple of 6"):
        rows_per_source(16, (1, 2, 3))
    with pytest.raises(ConfigError, match="1 or more"):
        alternating(sources, (1, 0, 1))
    with pytest.raises(ConfigError, match="a weight for each of 3 sources"):
        alternating(sources, (1, 1))
    orders = tuple(
        ShuffledOrder(source, OrderSettings(batch_rows=size))
        for source, size in zip(sources, (4, 5, 4), strict=True)
    )
    with pytest.raises(ConfigError, match="one size"):
        AlternatingOrder(orders, (1, 1, 1))
