"""A fitted flow maps vectors and back, row by row, and survives a file."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.errors import DataError
from pipeline.models.layers.numerics import use_threads
from pipeline.settings import FlowSettings
from pipeline.stats.tensors import pack, unpack
from pipeline.train.bert_flow import FlowTrainer, HeldOut
from pipeline.transforms.flow import Flow
from pipeline.transforms.transform import TRANSFORMS, load_transform

DIM = 24


def vectors(rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(7).normal(size=(DIM, DIM))
    return (rng.normal(size=(rows, DIM)) @ mix + 1).astype(np.float32)


def fit(steps: int = 10, **settings: Any) -> Flow:
    fitting = FlowTrainer(DIM, FlowSettings(**settings), torch.device("cpu"))
    held = HeldOut(vectors(200, seed=1))
    rows = vectors(32 * max(1, steps))
    fitting.initialize(rows[:32], held)
    for step in range(steps):
        fitting.train_step(rows[32 * step : 32 * step + 32])
    fitting.evaluate(held)
    return fitting.to_flow(held, len(rows), "a space")


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 600])
def test_a_row_does_not_depend_on_its_neighbours(rows: int):
    flow, x = fit(), vectors(600, seed=2)
    z = flow(x[:rows])
    assert (z.shape, z.dtype) == ((rows, DIM), np.float32)
    np.testing.assert_array_equal(z, flow(x)[:rows])
    np.testing.assert_allclose(flow.inverse(z), x[:rows], atol=1e-4)


def test_a_flow_is_not_affine():
    flow, (a, b) = fit(50), vectors(2)
    assert flow.affine() is None
    middle = flow(np.stack([a, b, (a + b) / 2]))
    assert np.abs(middle[2] - (middle[0] + middle[1]) / 2).max() > 1e-3


def test_a_file_preserves_every_bit_and_its_kind():
    flow = fit(permutation="random", levels=3, depth=2)
    back = load_transform(flow.to_bytes())
    assert isinstance(back, Flow)
    assert TRANSFORMS["flow"] is Flow
    assert back.to_bytes() == flow.to_bytes()
    assert (back.transform_id, back.space_id, back.fitted_rows, back.curve, back.settings) == (
        flow.transform_id,
        "a space",
        320,
        flow.curve,
        flow.settings,
    )
    assert (back.k, back.notes, back.shortage) == (DIM, flow.notes, None)
    np.testing.assert_array_equal(back(vectors(9)), flow(vectors(9)))


def test_a_loaded_flow_has_initialized_actnorms():
    """The first vectors after loading, of another location and scale, must not initialize actnorms again."""
    tensors, _ = unpack(fit(0).to_bytes())
    flags = [bool(tensor.all()) for name, tensor in tensors.items() if name.endswith("initialised")]
    assert flags == [True] * 18  # two levels of three steps with one actnorm each, and two in its coupling
    back, flow = load_transform(fit(0).to_bytes()), fit(0)
    back(1000 * vectors(50) - 3)
    np.testing.assert_array_equal(back(vectors(9)), flow(vectors(9)))


def test_another_process_writes_the_same_bytes():
    program = "from tests.transforms.test_flow import *; torch.set_num_threads(1); print(fit().transform_id)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    with use_threads(1):
        assert output.strip() == fit().transform_id


def test_notes_describe_likelihood_and_dev_scores():
    flow = fit()
    ends = f"{flow.curve[0].heldout:.4f} to {flow.curve[-1].heldout:.4f} on 200 held-out rows"
    assert flow.notes[0].startswith(f"bits per dimension went from {ends}")
    assert fit(1).shortage == "32 rows are too few for a flow on 24 dimensions: at least 120 are needed"


def test_invalid_vectors_and_damaged_files_are_refused():
    flow = fit(1)
    with pytest.raises(DataError, match=r"shape \(n, 24\)"):
        flow(np.ones((2, DIM - 1), np.float32))
    with pytest.raises(DataError, match="finite values"):
        flow(np.full((2, DIM), np.nan, np.float32))
    content = flow.to_bytes()
    with pytest.raises(DataError, match="damaged"):
        load_transform(content[:-9] + bytes([content[-9] ^ 64]) + content[-8:])
    tensors, header = unpack(content)
    with pytest.raises(DataError, match="no curve"):
        load_transform(pack(tensors, {name: value for name, value in header.items() if name != "curve"}))
    with pytest.raises(DataError, match="settings and the curve"):
        load_transform(pack(tensors, header | {"curve": [{"step": 1}]}))
    with pytest.raises(DataError, match="tensors that match its settings"):
        load_transform(pack(tensors, header | {"settings": header["settings"] | {"depth": 2}}))(vectors(2))
