"""ConSERT: two views of a text pick each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pipeline.errors import ConfigError
from pipeline.objectives.build import build_objective
from pipeline.objectives.consert import Consert
from pipeline.settings.training import TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, assert_same, batch_of, nt_xent, pop_gradients, texts

Z, OTHER = torch.tensor([[1.0, 0], [0, 1]]).double(), torch.tensor([[1.0, 1], [0, 2]]).double()
BATCH = batch_of({"text": texts(6)})


def test_the_loss_of_two_pairs_matches_a_hand_computation():
    found = Consert(Tiny(dim=2), temperature=0.5).loss((Z, OTHER), batch_of({"text": ["ab", "cd"]}))
    assert found.total.item() == pytest.approx(1.273342, abs=1e-6)


def test_false_negatives_are_excluded():
    objective = Consert(Tiny(), temperature=0.3, views=("none", "feature_cutoff")).double()
    alike = np.zeros((6, 6), bool)
    alike[1, 4] = alike[4, 1] = True
    reps = tuple(view.encode() for view in objective.views(BATCH))
    masked = replace(BATCH, false_negatives={"text": alike})
    for batch, excluded in ((masked, alike), (BATCH, np.zeros((6, 6), bool))):
        found = objective.loss(reps, batch).total.item()
        assert found == pytest.approx(nt_xent(*reps, 0.3, excluded), abs=1e-12)


def test_views_are_of_the_configured_kinds():
    second_views = {
        name: Consert(Tiny(), views=("none", name)).views(BATCH)[1]
        for name in ("none", "shuffle", "token_cutoff", "feature_cutoff")
    }
    assert {name for name, view in second_views.items() if view.positions is not None} == {"shuffle"}
    assert {
        name: view.at_embedding.zeroed for name, view in second_views.items() if view.at_embedding is not None
    } == {
        "token_cutoff": "tokens",
        "feature_cutoff": "features",
    }
    cutoff, shuffled = Consert(Tiny()).views(BATCH)  # the default
    assert cutoff.at_embedding.zeroed == "features"
    assert shuffled.positions is not None


@pytest.mark.parametrize(
    "views", [("feature_cutoff", "shuffle"), ("token_cutoff", "none"), ("feature_cutoff", "feature_cutoff")]
)
def test_chunks_share_the_views_of_the_whole_batch(views: tuple[str, str]):
    objective, found = Consert(Tiny(dim=12), views=views, token_rate=0.5).double(), []
    for chunk_rows in (None, 4, 1):
        torch.manual_seed(3)
        found.append(
            (loss_and_backward(objective, BATCH, chunk_rows=chunk_rows).loss.total, pop_gradients(objective))
        )
    for loss, gradient in found[1:]:
        torch.testing.assert_close(loss, found[0][0], rtol=0, atol=1e-12)
        assert_same(gradient, found[0][1])


@pytest.mark.parametrize("other", ["none", "feature_cutoff"])
def test_the_adversarial_view_raises_the_loss_more_than_random_steps_of_its_length(other: str):
    objective = Consert(Tiny(dim=8), views=("adversarial", other), noise=1e-3).double()
    torch.manual_seed(0)
    views = objective.views(BATCH)
    fixed, clean = views[1].encode(), objective.encoder(views[0].tokens)
    assert all(parameter.grad is None for parameter in objective.parameters())
    step = views[0].at_embedding.step
    torch.testing.assert_close(step.norm(dim=1), torch.full((len(step),), 1e-3).double(), rtol=1e-6, atol=0)
    without_step, adversarial = (
        objective.loss((rep, fixed), BATCH).total.item() for rep in (clean, views[0].encode())
    )
    torch.manual_seed(1)
    for _ in range(20):
        random = 1e-3 * F.normalize(torch.randn_like(step), dim=1)
        moved = objective.encoder(views[0].tokens, at_embedding=lambda x, segments, random=random: x + random)
        assert objective.loss((moved, fixed), BATCH).total.item() < adversarial
    assert adversarial > without_step


def test_an_adversarial_view_gives_all_parameters_a_gradient_and_allows_no_chunks():
    objective = Consert(Tiny(), views=("shuffle", "adversarial")).double()
    assert torch.isfinite(loss_and_backward(objective, BATCH).loss.total)
    found = pop_gradients(objective)
    assert found.keys() == dict(objective.named_parameters()).keys()
    assert all(gradient.abs().max() > 0 for gradient in found.values())
    with pytest.raises(
        ConfigError,
        match=r"chunk_rows: expected no chunks, because the adversarial view needs the gradient of all rows",
    ):
        loss_and_backward(objective, BATCH, chunk_rows=2)


@pytest.mark.parametrize(
    "options", [{"feature_rate": 1.0}, {"token_rate": 0}, {"views": ["none", "crop"]}, {"views": ["none"]}]
)
def test_invalid_options_are_refused(options: dict[str, object]):
    settings = TrainSettings(objective={"name": "consert", "options": options})
    with pytest.raises(ConfigError, match=r"train.objective\[0\].options of consert: " + next(iter(options))):
        build_objective(settings, Tiny())


def test_two_adversarial_views_are_refused():
    with pytest.raises(ConfigError, match="at most one adversarial view"):
        Consert(Tiny(), views=("adversarial", "adversarial"))
