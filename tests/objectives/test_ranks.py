"""Objectives that compare rows: two ranks train as one process does with the whole batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

from tests.models.folders import save_folder
from tests.objectives.ranks import WORLD, batch, cases, trained, work
from tests.objectives.tiny import assert_same


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an encoder, whose vectors have another dimension than those of the trained ones."""
    return save_folder(tmp_path_factory.mktemp("encoders") / "guide", "bert")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, guide: Path) -> list[dict[Any, Any]]:
    """Run two ranks; return the results of each."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, (folder, guide), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize(("name", "with_false_negatives"), cases())
def test_two_ranks_have_the_losses_and_the_state_of_one_process(
    found: list[dict[Any, Any]], guide: Path, name: str, with_false_negatives: bool
):
    losses, state = trained(
        name,
        with_false_negatives,
        lambda step: batch(0, 1, step, with_false_negatives=with_false_negatives),
        guide,
    )
    for each in found:
        own_losses, own_state = each[name, with_false_negatives]
        torch.testing.assert_close(own_losses, losses, rtol=0, atol=1e-11)
        assert_same(own_state, state, tolerance=1e-11)
