"""What every objective keeps to, whatever it trains for."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch

from pipeline.objectives import OBJECTIVES, Batch, Objective
from pipeline.settings.training import ROLES, TEXTS
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, assert_same, batch_of, gradients, texts

ROWS = 6
NUMBERS = {"score": np.linspace(0, 1, ROWS), "label": np.arange(ROWS) % 3, "document": np.arange(ROWS) // 3, "position": np.arange(ROWS) % 3}

pytestmark = pytest.mark.parametrize("name", OBJECTIVES.names())


def made(name: str, seed: int = 0) -> Objective:
    """With its defaults, in float64."""
    torch.manual_seed(seed)
    return OBJECTIVES[name](Tiny(seed=seed)).double()


def batch_for(objective: Objective) -> Batch:
    roles = (*objective.columns, *objective.optional)
    return batch_of({role: texts(ROWS, place) if role in TEXTS else NUMBERS[role] for place, role in enumerate(ROLES) if role in roles})


def trained(objective: Objective, chunk_rows: int | None = None) -> torch.Tensor:
    """The loss of a step; gradients are left."""
    torch.manual_seed(7)
    return loss_and_backward(objective, batch_for(objective), chunk_rows=chunk_rows).loss.total


def test_it_names_roles_that_data_can_have(name: str):
    kind = OBJECTIVES[name]
    assert kind.columns
    assert {*kind.columns, *kind.optional} <= set(ROLES)
    assert kind.__doc__


def test_it_builds_from_defaults_pickles_and_copies(name: str):
    objective = made(name)
    expected = trained(objective)
    for other in (pickle.loads(pickle.dumps(objective)), copy.deepcopy(objective)):
        assert torch.equal(trained(other), expected)


def test_its_gradient_reaches_the_encoder_and_whatever_else_is_trained(name: str):
    objective = made(name)
    assert torch.isfinite(trained(objective))
    found = gradients(objective)
    assert set(found) == {parameter for parameter, value in objective.named_parameters() if value.requires_grad}
    assert any(gradient.abs().max() > 0 for parameter, gradient in found.items() if parameter.startswith("encoder."))


def test_steps_along_its_gradient_lower_its_loss(name: str):
    objective = made(name)
    before = trained(objective)
    with torch.no_grad():
        for parameter in objective.parameters():
            if parameter.grad is not None:
                parameter -= 1e-5 * parameter.grad
    assert trained(objective) < before


def test_it_equals_itself_in_chunks(name: str):
    objective = made(name)
    expected, known = trained(objective), gradients(objective)
    if any(view.undivided is not None for view in objective.views(batch_for(objective))):
        pytest.skip("it refuses chunks")
    for chunk_rows in (1, 4):
        torch.testing.assert_close(trained(objective, chunk_rows), expected, rtol=0, atol=1e-12)
        assert_same(gradients(objective), known)


def test_its_state_survives_a_file(name: str):
    objective, batch = made(name), batch_for(made(name))
    objective.after_step(loss_and_backward(objective, batch).reps, batch)
    file = io.BytesIO()
    torch.save(objective.state_dict(), file)
    file.seek(0)
    other = made(name, seed=1)
    assert not torch.equal(trained(other), trained(objective))
    other.load_state_dict(torch.load(file))
    assert torch.equal(trained(other), trained(objective))


def test_it_does_not_change_what_it_is_given(name: str):
    objective = made(name)
    batch = batch_for(objective)
    before = pickle.dumps({role: list(values) for role, values in batch.columns.items()})
    loss_and_backward(objective, batch)
    assert pickle.dumps({role: list(values) for role, values in batch.columns.items()}) == before
