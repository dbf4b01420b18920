"""Poolings of packed tokens equal their formulas."""

import numpy as np
import pytest
import torch

from pipeline.models.layers.pooling import TABLE_STATE, layers_of, pool, segments

H = torch.tensor([[1.0, 2], [3, 0], [5, -4], [9, 9]])
H2 = torch.tensor([[0.0, 2], [2, 2], [1, 5], [7, 7]])
FIRST_THREE = segments(np.array([0]), np.array([3]), 0, torch.from_numpy)


@pytest.mark.parametrize(("name", "expected"), [("mean", [3.0, -0.666667]), ("max", [5, 2]), ("cls", [1, 2])])
def test_poolings_worked_out_by_hand(name, expected):
    np.testing.assert_allclose(pool(name, {2: H}, 2, FIRST_THREE)[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "states"),
    [("last2", {1: H, 2: H2}), ("first_last", {1: H, 2: H2}), ("static_last", {0: H, 2: H2})],
)
def test_averages_of_two_layers_worked_out_by_hand(name, states):
    np.testing.assert_allclose(pool(name, states, 2, FIRST_THREE)[0], [2.0, 1.166667], atol=1e-6)


def test_the_layers_read_are_those_of_the_names():
    assert layers_of(["static"], 6) == {0}
    assert layers_of(["static_last", "last2"], 6) == {0, 5, 6}
    assert layers_of(["first_last", "mean"], 6) == {1, 6}
    assert layers_of(["table", "mean"], 6) == {TABLE_STATE, 6}
    assert layers_of(["table", "mean", "static"], 0) == {TABLE_STATE, 0}


@pytest.mark.parametrize("name", ["mean", "max", "cls", "sqrt_len", "weighted_mean", "last"])
@pytest.mark.parametrize("skip", [0, 2])
def test_poolings_equal_numpy_text_by_text(name, skip):
    rng = np.random.default_rng(0)
    lengths = np.array([9, 9, 4, 1])
    states = rng.normal(size=(30, 5)).astype(np.float32)
    starts = np.cumsum(lengths) - lengths
    got = pool(name, {3: torch.from_numpy(states)}, 3, segments(starts, lengths, skip, torch.from_numpy))
    for start, length, vector in zip(starts, lengths, got, strict=True):
        first = skip if length > skip else 0  # a text that is nothing but prompt keeps all it has
        rows, places = states[start + first : start + length], np.arange(first, length)
        expected = {
            "mean": rows.mean(0),
            "max": rows.max(0),
            "cls": rows[0],
            "last": rows[-1],
            "sqrt_len": rows.sum(0) / np.sqrt(len(rows)),
            "weighted_mean": np.average(rows, axis=0, weights=places + 1),
        }[name]
        np.testing.assert_allclose(vector, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["mean", "max", "cls", "sqrt_len", "weighted_mean", "last"])
@pytest.mark.parametrize("skip", [0, 2])
def test_tokens_left_out_are_left_out_except_where_nothing_is_left(name, skip):
    rng = np.random.default_rng(1)
    lengths = np.array([9, 7, 4, 1, 3])
    states, kept = rng.normal(size=(30, 5)).astype(np.float32), rng.random(24) < 0.4
    kept[16:20] = [
        True,
        True,
        False,
        False,
    ]  # the third text keeps what is its prompt's alone, the last nothing
    kept[21:] = False
    starts = np.cumsum(lengths) - lengths
    got = pool(
        name, {3: torch.from_numpy(states)}, 3, segments(starts, lengths, skip, torch.from_numpy, kept)
    )
    for start, length, vector in zip(starts, lengths, got, strict=True):
        first = skip if length > skip else 0
        all_places = np.arange(first, length)
        places = all_places[kept[start + all_places]] if kept[start + all_places].any() else all_places
        rows = states[start + places]
        expected = {
            "mean": rows.mean(0),
            "max": rows.max(0),
            "cls": states[start + first],
            "last": states[start + length - 1],
            "sqrt_len": rows.sum(0) / np.sqrt(len(rows)),
            "weighted_mean": np.average(rows, axis=0, weights=places + 1),
        }[name]
        np.testing.assert_allclose(vector, expected, atol=1e-6)


def test_half_precision_states_are_pooled_in_float32():
    states = torch.full((4096, 1), 0.1, dtype=torch.bfloat16)
    pooled = pool("mean", {1: states}, 1, segments(np.array([0]), np.array([4096]), 0, torch.from_numpy))
    np.testing.assert_allclose(pooled, states[:1].float(), rtol=1e-4)  # a bfloat16 sum would stall at 32
