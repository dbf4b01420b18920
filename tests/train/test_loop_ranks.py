"""Two processes train as one: equal updates, joint errors, and identical resuming."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing

from pipeline.settings.training import CheckpointSettings
from pipeline.store.files.open_store import open_store
from pipeline.train.checkpoint import Checkpoints, load_state
from pipeline.train.loop import fit
from tests.objectives.tiny import assert_same
from tests.train.loop_ranks import CASES, KILLED, settings_of, without_dropout, work
from tests.train.small import STEPS, numbers, rows_of, training


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run two ranks; return the folder of their checkpoints and results."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, (2, folder), nprocs=2)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """Load the results of each rank."""
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_resumed_ranks_are_identical(found: list[dict[str, Any]], name: str):
    first, second = (each[name] for each in found)
    assert first["uninterrupted"] == second["uninterrupted"]
    for each in (first, second):
        assert each["resumed"] == each["uninterrupted"][KILLED - 1 :]
    assert_same(second["weights"], first["weights"], tolerance=0)


@pytest.mark.parametrize("name", CASES)
def test_the_first_rank_has_the_state_and_each_rank_its_own_random_numbers(
    found: list[dict[str, Any]], name: str
):
    first, second = (each[name] for each in found)
    assert (first["has_state"], second["has_state"]) == (True, False)
    assert not torch.equal(first["draw"], second["draw"])


@pytest.mark.parametrize("name", CASES)
def test_one_process_can_resume_a_training_of_two(folder: Path, found: list[dict[str, Any]], name: str):
    """Compare without dropout, because each rank has its own masks."""
    case = without_dropout(name)
    checkpoint = Checkpoints(open_store(folder / case), "checkpoints", CheckpointSettings()).last()
    made = training(settings_of(CASES[name]), name, dropout=0.0, seed=7)
    made.restore(load_state(checkpoint))
    assert made.number == KILLED - 1
    resumed = numbers(list(fit(made, rows_of(KILLED - 1), until=STEPS)))
    np.testing.assert_allclose(resumed, found[0][case]["uninterrupted"][KILLED - 1 :], rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_without_dropout_two_ranks_equal_one_process(found: list[dict[str, Any]], name: str):
    alone = training(settings_of(CASES[name]), name, dropout=0.0)
    expected = numbers(list(fit(alone, rows_of(), until=STEPS)))
    for each in found:
        np.testing.assert_allclose(each[without_dropout(name)]["uninterrupted"], expected, rtol=1e-6)


def test_an_infinite_loss_on_one_rank_stops_all_ranks(found: list[dict[str, Any]]):
    first, second = (each["error"] for each in found)
    assert first == second
    assert first["steps"] == 0
    message = first["message"]
    assert message.startswith("step 1: ")
    assert "loss" in message
    assert "bad" in message
    assert f"on rows {', '.join(map(str, next(rows_of()).rows[:5]))}" in message


def test_checkpoints_follow_the_first_ranks_clock(found: list[dict[str, Any]]):
    assert [each["due"] for each in found] == 2 * [[True, True]]
