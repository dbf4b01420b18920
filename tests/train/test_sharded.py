"""A training with sharded weights equals one without."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing

from tests.models.folders import save_folder
from tests.train.sharded_ranks import SETTINGS, STEPS, work

Found = dict[str, Any]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return the results of the first of two ranks."""
    folders = {family: save_folder(tmp_path_factory.mktemp(family), family) for family in ("bert", "electra")}
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, (2, folder, folders), nprocs=2)
    loaded: Found = torch.load(folder / "found.pt", weights_only=False)
    return loaded


def assert_near(found: Any, expected: Any, tolerance: float, where: str = "") -> None:
    """Assert that tensors of nested states are equal up to the tolerance, and other values exactly."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(
            found, expected, rtol=0, atol=tolerance, msg=lambda text: f"{where}: {text}"
        )
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_near(found[key], expected[key], tolerance, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, (left, right) in enumerate(zip(found, expected, strict=True)):
            assert_near(left, right, tolerance, f"{where}[{index}]")
    else:
        assert found == expected, where


@pytest.mark.parametrize("name", SETTINGS)
def test_sharded_steps_match_unsharded_ones(found: Found, name: str):
    whole, sharded = found[f"{name} ddp"], found[f"{name} fsdp"]
    assert len(whole["steps"]) == STEPS
    np.testing.assert_allclose(sharded["steps"], whole["steps"], rtol=2e-6)
    assert sharded["dev after step 1"] == pytest.approx(whole["dev after step 1"], abs=1e-9)
    for state in ("state after step 1", "state at the end"):
        assert_near(sharded[state], whole[state], 1e-6)
    assert sharded["own weights"] < 0.6 * whole["own weights"]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_checkpoint_resumes_with_and_without_shards(found: Found, name: str):
    """The checkpoint is that of a training with shards. Resumed with shards, the training is identical."""
    whole, sharded = found[f"{name} ddp"], found[f"{name} fsdp"]
    steps, state = found[f"{name} fsdp resumed"]
    assert steps == sharded["steps"][1:]
    assert_near(state, sharded["state at the end"], 0)
    steps, state = found[f"{name} ddp resumed"]
    np.testing.assert_allclose(steps, whole["steps"][1:], rtol=2e-6)
    assert_near(state, whole["state at the end"], 1e-6)
