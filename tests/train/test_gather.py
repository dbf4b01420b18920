"""Several ranks give the gradient of one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing

from pipeline.train.gather import Ranks, average_gradients, mean_over_ranks
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import assert_same, pop_gradients
from tests.train.four_pairs import (
    GRADIENT,
    GRADIENT_OF_DETACHED_CANDIDATES,
    GRADIENT_OF_OWN_CANDIDATES,
    LOSS,
    LOSS_OF_OWN_CANDIDATES,
    LOSSES_OF_HALVES,
    TOLERANCE,
)
from tests.train.gather_ranks import TOKENS, count_passes, false_negatives, objectives, part, work


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run the ranks; return the results of each."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, (request.param, folder), nprocs=request.param)
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


def test_vectors_are_gathered_in_rank_order(found: list[dict[str, Any]]):
    expected = torch.cat([torch.arange(4.0).reshape(2, 2) + 10 * rank for rank in range(len(found))])
    for each in found:
        assert torch.equal(each["gathered"], expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["supervised", "simcse"])
def test_ranks_match_one_process_with_the_whole_batch(found: list[dict[str, Any]], name: str, masked: bool):
    objective = objectives()[name]
    whole = loss_and_backward(objective, part(0, 1, alike=false_negatives(name) if masked else None))
    expected = pop_gradients(objective)
    assert "head.linear.weight" in expected
    for each in found:
        for chunk_rows in (None, 1):
            loss, gradient = each[f"{name} {chunk_rows} {masked}"]
            torch.testing.assert_close(loss, whole.loss.total, rtol=0, atol=1e-12)
            assert_same(gradient, expected)


@pytest.mark.parametrize("name", ["supervised", "simcse"])
def test_ranks_divide_their_rows_into_equally_many_chunks_of_tokens(found: list[dict[str, Any]], name: str):
    objective, world = objectives()[name], len(found)
    loss_and_backward(objective, part(0, 1))
    expected = pop_gradients(objective)
    alone = [count_passes(objective, part(rank, world), TOKENS) for rank in range(world)]
    assert len({*alone}) > 1
    for each in found:
        passes, gradient = each[f"{name} tokens"]
        assert passes == max(alone)
        assert_same(gradient, expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["supervised", "simcse"])
def test_gradients_are_equal_on_all_ranks_to_the_last_bit(
    found: list[dict[str, Any]], name: str, masked: bool
):
    first, *others = found
    for chunk_rows in (None, 1):
        case = f"{name} {chunk_rows} {masked}"
        for other in others:
            assert_same(other[case][1], first[case][1], tolerance=0)


def test_gradients_of_two_batches_add_up(found: list[dict[str, Any]]):
    objective = objectives()["supervised"]
    loss_and_backward(objective, part(0, 1))
    expected = pop_gradients(objective)
    for each in found:
        assert_same(each["supervised twice"], {name: 2 * gradient for name, gradient in expected.items()})


def test_unequal_numbers_of_rows_are_an_error_on_every_rank(found: list[dict[str, Any]]):
    for each in found:
        assert len(each["errors"]) == 2
        for message in each["errors"]:
            assert "as many rows on every rank" in message
            assert "3 of 6 values on rank 0, 2 of 6 values on rank 1" in message


def test_missing_gradients_count_as_zero_unless_all_are_missing(found: list[dict[str, Any]]):
    for each in found:
        of_one_rank, of_no_rank, in_half_precision = each["averaged"]
        assert torch.equal(of_one_rank, torch.tensor([2.0, 4.0]) / len(found))
        assert of_no_rank is None
        assert in_half_precision.dtype == torch.bfloat16
        assert in_half_precision.tolist() == [(len(found) - 1) / 2] * 3


@pytest.mark.parametrize(
    ("way", "loss", "gradient"),
    [
        ("right", LOSS, np.array(GRADIENT)),
        ("loss of all rows", LOSS, np.array(GRADIENT) / 2),
        ("detached", LOSS, np.array(GRADIENT_OF_DETACHED_CANDIDATES)),
        ("own candidates", LOSS_OF_OWN_CANDIDATES, np.array(GRADIENT_OF_OWN_CANDIDATES)),
    ],
)
def test_right_and_wrong_gathering_of_four_pairs_match_a_hand_computation(
    found: list[dict[str, Any]], way: str, loss: float, gradient: np.ndarray
):
    if len(found) != 2:
        pytest.skip("the example needs two ranks")
    for each in found:
        assert each[way]["loss"] == pytest.approx(loss, abs=TOLERANCE)
        np.testing.assert_allclose(each[way]["gradient"], gradient, atol=TOLERANCE)
    if way in ("right", "detached"):  # equal losses, different gradients
        own_losses = [each[way]["own_loss"] for each in found]
        assert own_losses == pytest.approx(LOSSES_OF_HALVES, abs=TOLERANCE)


def test_without_a_process_group_gathering_does_nothing():
    z, parameter = torch.randn(3, 2, requires_grad=True), torch.nn.Parameter(torch.zeros(2))
    assert Ranks().gather(z) is z
    assert Ranks().rank == 0
    average_gradients([parameter])
    assert parameter.grad is None
    assert mean_over_ranks(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
