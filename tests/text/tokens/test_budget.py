"""Packed buffers hold every row once, stay within max_tokens, and have almost no gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.text.tokens.budget import deduplicate, longest_first, plan_buffers


def test_longest_first_padding_equals_the_worked_example():
    lengths = np.array([3, 20, 5, 18, 4, 19, 6, 17])
    order = longest_first(lengths)
    assert order.tolist() == [1, 5, 3, 7, 6, 2, 4, 0]

    def padded(rows):
        return sum(2 * int(lengths[pair].max()) for pair in np.split(rows, 4))

    assert (padded(np.arange(8)), padded(order), int(lengths.sum())) == (148, 96, 92)


@given(st.lists(st.integers(0, 64), max_size=200), st.integers(64, 300))
def test_every_row_with_tokens_is_planned_once_within_the_budget(lengths, budget):
    lengths = np.array(lengths, dtype=np.int64)
    buffers = plan_buffers(lengths, budget)
    planned = np.concatenate([*buffers, np.array([], dtype=np.int64)])
    assert sorted(planned.tolist()) == np.flatnonzero(lengths).tolist()
    assert all(0 < lengths[rows].sum() <= budget for rows in buffers)
    assert all((np.diff(lengths[rows]) <= 0).all() for rows in buffers)


@given(st.lists(st.integers(1, 64), max_size=200), st.integers(64, 300))
def test_a_buffer_leaves_no_gap_that_a_later_text_would_fit(lengths, budget):
    lengths = np.array(lengths, dtype=np.int64)
    buffers = plan_buffers(lengths, budget)
    for number, rows in enumerate(buffers):
        gap = budget - lengths[rows].sum()
        assert all(lengths[later].min() > gap for later in buffers[number + 1 :])


def test_mixed_lengths_leave_less_than_one_percent_unused():
    lengths = np.random.default_rng(0).integers(8, 257, 5_000)
    buffers = plan_buffers(lengths, 1_024)
    assert lengths.sum() / (1_024 * len(buffers)) > 0.99


def test_rows_of_equal_length_keep_their_order():
    assert [rows.tolist() for rows in plan_buffers(np.array([5, 5, 5, 5, 5]), 10)] == [[0, 1], [2, 3], [4]]


def test_a_text_above_the_budget_is_refused():
    with pytest.raises(ConfigError, match=r"encode\.max_tokens: expected at least the 65 tokens.*found 64"):
        plan_buffers(np.array([3, 65]), 64)


def test_no_tokens_need_no_buffer():
    assert plan_buffers(np.array([], dtype=np.int64), 64) == []
    assert plan_buffers(np.array([0, 0]), 64) == []


def test_distinct_texts_are_in_order_of_first_occurrence():
    texts, inverse = deduplicate(["b", "a", "b", "", "a"])
    assert texts == ["b", "a", ""]
    assert inverse.tolist() == [0, 1, 0, 2, 1]
