"""Two processes train as one: equal updates, joint errors, and identical resuming."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing

from pipeline.settings.training import CheckpointSettings
from pipeline.store.store import open_store
from pipeline.train.checkpoint import Checkpoints, load_state
from pipeline.train.loop import fit
from tests.train.ranks_of_loop import CASES, KILLED, settings_of, without_dropout, work
from tests.train.small import STEPS, numbers, rows_of, training


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, (2, folder), nprocs=2)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """Run two ranks; return the results of each."""
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_resumed_ranks_are_identical(found: list[dict[str, Any]], name: str):
    for each in found:
        assert each[name]["again"] == each[name]["undisturbed"][KILLED - 1 :]
        assert each[name]["undisturbed"] == found[0][name]["undisturbed"]
    assert [each[name]["empty"] for each in found] == [False, True]
    assert not torch.equal(*(each[name]["draw"] for each in found))  # each rank has its own masks
    for key, value in found[0][name]["weights"].items():
        assert torch.equal(found[1][name]["weights"][key], value), key


@pytest.mark.parametrize("name", CASES)
def test_one_process_can_resume_a_training_of_two(folder: Path, found: list[dict[str, Any]], name: str):
    """Without dropout, because each rank has its own masks."""
    case = without_dropout(name)
    checkpoint = Checkpoints(open_store(folder / case), "checkpoints", CheckpointSettings()).last()
    made = training(settings_of(CASES[name]), name, dropout=0.0, seed=7)
    made.restore(load_state(checkpoint))
    assert made.number == KILLED - 1
    resumed = numbers(list(fit(made, rows_of(KILLED - 1), until=STEPS)))
    np.testing.assert_allclose(resumed, found[0][case]["undisturbed"][KILLED - 1 :], rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_without_dropout_two_ranks_equal_one_process(found: list[dict[str, Any]], name: str):
    expected = numbers(
        list(fit(training(settings_of(CASES[name]), name, dropout=0.0), rows_of(), until=STEPS))
    )
    for each in found:
        np.testing.assert_allclose(each[without_dropout(name)]["undisturbed"], expected, rtol=1e-6)


def test_an_infinite_loss_on_one_rank_stops_all_ranks(
    found: list[dict[str, Any]],
):
    batch = next(rows_of())
    for each in found:
        error = each["error"]
        assert (error["number"], error["text"]) == (0, found[0]["error"]["text"])
        assert error["text"].startswith("step 1: ")
        assert "loss" in error["text"]
        assert "bad" in error["text"]
        assert f"on rows {', '.join(map(str, batch.rows[:5]))}" in error["text"]


def test_checkpoints_follow_the_first_ranks_clock(found: list[dict[str, Any]]):
    assert [each["due"] for each in found] == 2 * [[True, True]]
