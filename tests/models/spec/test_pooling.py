"""Poolings of packed tokens equal their formulas."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling as LibraryPooling

from pipeline.models.spec.pooling import POOLINGS, ST_FLAGS, TABLE_STATE, find_segments, layers_of, pool
from tests.models.poolings import FORMULAS, TABLE

H = torch.tensor([[1.0, 2], [3, 0], [5, -4], [9, 9]])
H2 = torch.tensor([[0.0, 2], [2, 2], [1, 5], [7, 7]])
UNFILTERED = ("cls", "cls_mlp", "last", "ends")  # poolings that read excluded tokens too
FIRST_THREE = find_segments(np.array([0]), np.array([3]), 0, torch.from_numpy)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mean", [3.0, -0.666667]), ("max", [5, 2]), ("cls", [1, 2]), ("sqrt_len", [5.196152, -1.154701])],
)
def test_poolings_match_a_hand_computation(name, expected):
    np.testing.assert_allclose(pool(name, {2: H}, 2, FIRST_THREE)[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "states"),
    [("last2", {1: H, 2: H2}), ("first_last", {1: H, 2: H2}), ("static_last", {0: H, 2: H2})],
)
def test_averages_of_two_layers_match_a_hand_computation(name, states):
    np.testing.assert_allclose(pool(name, states, 2, FIRST_THREE)[0], [2.0, 1.166667], atol=1e-6)


def test_a_pooling_reads_only_the_layers_that_it_needs():
    assert layers_of(["static"], 6) == {0}
    assert layers_of(["static_last", "last2"], 6) == {0, 5, 6}
    assert layers_of(["first_last", "mean"], 6) == {1, 6}
    assert layers_of(["table", "mean"], 6) == {TABLE_STATE, 6}
    assert layers_of(["table", "mean", "static"], 0) == {TABLE_STATE, 0}


@pytest.mark.parametrize("pooling", POOLINGS.values(), ids=POOLINGS)
@pytest.mark.parametrize("skip", [0, 2])
@pytest.mark.parametrize("filtered", [False, True])
def test_every_pooling_equals_its_formula_text_by_text(pooling, skip, filtered):
    rng = np.random.default_rng(1)
    lengths = np.array([9, 7, 4, 1, 3])
    ends = np.cumsum(lengths)
    kept = rng.random(24) < 0.4 if filtered or pooling.token == "mask" else None
    if kept is not None:
        kept[16:20] = [True, True, False, False]  # the third text keeps tokens of its prompt alone
        kept[20:] = False  # the last two keep nothing
    if pooling.token == "mask":  # one token per text, behind the prompt where there is one
        kept = np.isin(np.arange(24), ends - 1)
    states = {number: rng.normal(size=(30, 6)).astype(np.float32) for number in (TABLE_STATE, 0, 1, 2, 3)}
    segments = find_segments(ends - lengths, lengths, skip, torch.from_numpy, kept)
    got = pool(pooling.name, {number: torch.from_numpy(each) for number, each in states.items()}, 3, segments)
    for start, length, vector in zip(ends - lengths, lengths, got, strict=True):
        at = np.arange(skip if length > skip else 0, length)  # a text that is only a prompt keeps all tokens
        if kept is not None and kept[start + at].any() and pooling.name not in UNFILTERED:
            at = at[kept[start + at]]
        of_text = {number: each[start : start + length] for number, each in states.items()}
        h = of_text | {-1: of_text[3], -2: of_text[2], TABLE: of_text[TABLE_STATE]}
        np.testing.assert_allclose(vector, FORMULAS[pooling.name](h, at), atol=1e-6)


def test_poolings_have_the_names_of_sentence_transformers():
    for flag, name in ST_FLAGS.items():
        library = LibraryPooling(4, **{mode: mode == flag for mode in ST_FLAGS})
        assert library.get_config_dict()["pooling_mode"] == POOLINGS[name].st_name


def test_the_reference_config_lists_every_pooling():
    text = (Path(__file__).parents[3] / "jobs" / "configs" / "nightly.yaml").read_text(encoding="utf-8")
    listed = re.search(r"# (cls, [^;]+);", text)
    assert listed is not None
    assert set(re.split(", | or ", listed[1])) == POOLINGS.keys()


def test_half_precision_states_are_pooled_in_float32():
    states = torch.full((4096, 1), 0.1, dtype=torch.bfloat16)
    pooled = pool("mean", {1: states}, 1, find_segments(np.array([0]), np.array([4096]), 0, torch.from_numpy))
    np.testing.assert_allclose(pooled, states[:1].float(), rtol=1e-4)  # a bfloat16 sum would stall at 32


class Indexed:
    """States that note how many tokens are read at once."""

    def __init__(self, states: torch.Tensor) -> None:
        self.states, self.counts = states, list[int]()

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        self.counts.append(len(indices))
        return self.states[indices]


@pytest.mark.parametrize("name", ["mean", "sqrt_len", "sum"])
def test_a_long_text_is_summed_in_blocks_with_the_same_bits(name: str):
    states = torch.from_numpy(np.random.default_rng(0).normal(size=(200_003, 7)).astype(np.float32))
    alone = find_segments(np.array([0]), np.array([200_003]), 3, torch.from_numpy)
    both = find_segments(np.array([0, 5]), np.array([200_003, 9]), 3, torch.from_numpy)  # not in blocks
    indexed = Indexed(states)
    (found,) = pool(name, {0: indexed}, 0, alone)  # type: ignore[dict-item]
    assert torch.equal(found, pool(name, {0: states}, 0, both)[0])
    assert sum(indexed.counts) == 200_000
    assert max(indexed.counts) == 65_536
    divisor = {"mean": 200_000, "sqrt_len": 200_000**0.5, "sum": 1}[name]
    np.testing.assert_allclose(found, states[3:].double().sum(0) / divisor, rtol=1e-3)
