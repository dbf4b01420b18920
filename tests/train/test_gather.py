"""Several ranks give the gradient of one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing

from pipeline.train.gather import Ranks, average_gradients, mean_over_ranks
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import assert_same, gradients
from tests.train.four_pairs import DETACHED, GRADIENT, HALVES, LOSS, NEAR
from tests.train.ranks import candidates, objectives, part, work


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


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("name", ["supervised", "simcse"])
def test_ranks_match_one_process_with_the_whole_batch(found: list[dict[str, Any]], name: str, alike: bool):
    objective = objectives()[name]
    whole = loss_and_backward(objective, part(0, 1, alike=candidates(name) if alike else None))
    expected = gradients(objective)
    assert "head.linear.weight" in expected
    for each in found:
        for chunk_rows in (None, 1):
            loss, own = each[f"{name} {chunk_rows} {alike}"]
            torch.testing.assert_close(loss, whole.loss.total, rtol=0, atol=1e-12)
            assert_same(own, expected)
            assert_same(own, found[0][f"{name} {chunk_rows} {alike}"][1], tolerance=0)


def test_gradients_of_two_batches_add_up(found: list[dict[str, Any]]):
    objective = objectives()["supervised"]
    loss_and_backward(objective, part(0, 1))
    expected = gradients(objective)
    for each in found:
        assert_same(
            each["supervised twice"], {parameter: 2 * gradient for parameter, gradient in expected.items()}
        )


def test_unequal_ranks_fail_on_every_rank(found: list[dict[str, Any]]):
    for each in found:
        for message in each["errors"]:
            assert "as many rows on every rank" in message
            assert "3 of 6 values on rank 0, 2 of 6 values on rank 1" in message


def test_missing_gradients_count_as_zero_unless_all_are_missing(
    found: list[dict[str, Any]],
):
    for each in found:
        some, none, half = each["unused"]
        assert torch.equal(some, torch.tensor([2.0, 4.0]) / len(found))
        assert none is None
        assert half.dtype == torch.bfloat16
        assert half.tolist() == [(len(found) - 1) / 2] * 3


def test_gradients_of_four_pairs_match_a_hand_computation(found: list[dict[str, Any]]):
    if len(found) != 2:
        pytest.skip("the example needs two ranks")
    for each in found:
        for name, loss, gradient in [
            ("right", LOSS, np.array(GRADIENT)),
            ("full", LOSS, np.array(GRADIENT) / 2),
            ("detached", LOSS, np.array(DETACHED)),
            ("local", 0.146462, np.array(HALVES)),
        ]:
            assert each[name][0].item() == pytest.approx(loss, abs=NEAR)
            np.testing.assert_allclose(each[name][2], gradient, atol=NEAR)
    assert [each["detached"][1] for each in found] == pytest.approx(
        [0.401016, 0.249846], abs=NEAR
    )  # equal losses, different gradients
    assert [each["right"][1] for each in found] == pytest.approx([0.401016, 0.249846], abs=NEAR)


def test_without_a_process_group_gathering_does_nothing():
    z, parameter = torch.randn(3, 2, requires_grad=True), torch.nn.Parameter(torch.zeros(2))
    assert Ranks().gather(z) is z
    assert Ranks().rank == 0
    average_gradients([parameter])
    assert parameter.grad is None
    assert mean_over_ranks(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
