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


def assert_near(one: Any, other: Any, tolerance: float, where: str = "") -> None:
    """Compare nested states: equal plain values, close tensors."""
    if isinstance(other, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance, msg=lambda text: f"{where}: {text}")
    elif isinstance(other, dict):
        assert one.keys() == other.keys(), where
        for key in other:
            assert_near(one[key], other[key], tolerance, f"{where}.{key}")
    elif isinstance(other, list):
        assert len(one) == len(other), where
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_near(left, right, tolerance, f"{where}[{number}]")
    else:
        assert one == other, where


@pytest.mark.parametrize("name", SETTINGS)
def test_sharded_steps_match_unsharded_ones(found: Found, name: str):
    whole, sharded = found[f"{name} ddp"], found[f"{name} fsdp"]
    assert len(whole["figures"]) == STEPS
    np.testing.assert_allclose(sharded["figures"], whole["figures"], rtol=2e-6)
    assert sharded["dev"] == pytest.approx(whole["dev"], abs=1e-9)
    assert_near(sharded["middle"], whole["middle"], 1e-6)
    assert_near(sharded["end"], whole["end"], 1e-6)
    if name != "adapters":  # here most weights are heads
        assert sharded["held"] < 0.6 * whole["held"]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_checkpoint_resumes_with_and_without_shards(found: Found, name: str):
    figures, state = found[f"{name} again fsdp"]
    assert figures == found[f"{name} fsdp"]["figures"][1:]
    assert_near(state, found[f"{name} fsdp"]["end"], 0)
    figures, state = found[f"{name} again ddp"]
    np.testing.assert_allclose(figures, found[f"{name} ddp"]["figures"][1:], rtol=2e-6)
    assert_near(state, found[f"{name} ddp"]["end"], 1e-6)
