"""Supervised SimCSE: an anchor picks its positive among positives and hard negatives."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.objectives.supervised import Supervised
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, texts, tokenize

Z, POSITIVE, NEGATIVE = (
    torch.tensor(rows).double() for rows in ([[1.0, 0], [0, 1]], [[1.0, 1], [0, 2]], [[-1.0, 1], [1, 2]])
)
BATCH = batch_of({"anchor": ["a", "b"], "positive": ["c", "d"], "negative": ["e", "f"]})


@pytest.mark.parametrize(("weight", "loss"), [(1.0, 0.856406), (2.0, 0.994004)])
def test_the_loss_of_two_triples_matches_a_hand_computation(weight: float, loss: float):
    objective = Supervised(Tiny(dim=2), temperature=0.5, hard_negative_weight=weight)
    assert objective.loss((Z, POSITIVE, NEGATIVE), BATCH).total.item() == pytest.approx(loss, abs=1e-6)


def test_the_loss_of_inner_products_matches_a_hand_computation():
    """A row of scores: inner products of an anchor with both positives, then with both negatives."""
    objective = Supervised(Tiny(dim=2), similarity="dot")
    scores = torch.tensor([[1.0, 0, -1, 1], [1, 2, 1, 2]]).double()
    expected = torch.nn.functional.cross_entropy(scores, torch.tensor([0, 1]))
    found = objective.loss((Z, POSITIVE, NEGATIVE), BATCH).total
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weight", [1.0, 2.0])
@pytest.mark.parametrize("masked", [False, True])
def test_second_negatives_are_candidates_of_weight_one(weight: float, masked: bool):
    """Candidates are all positives, negatives and second negatives; only an anchor's negative is weighted."""
    second_negative = torch.tensor([[1.0, -1], [0, -1]]).double()
    objective = Supervised(Tiny(dim=2), temperature=0.5, hard_negative_weight=weight)
    batch = batch_of({**BATCH.columns, "negative2": ["g", "h"]})
    candidates = torch.cat([POSITIVE, NEGATIVE, second_negative])
    logits = torch.nn.functional.cosine_similarity(Z[:, None], candidates[None], dim=2) / 0.5
    logits[[0, 1], [2, 3]] += np.log(weight)
    if masked:
        excluded = np.array([[0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]], bool)
        batch = replace(batch, false_negatives={"anchor": excluded})
        logits[torch.from_numpy(excluded)] = -torch.inf
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1]))
    found = objective.loss((Z, POSITIVE, NEGATIVE, second_negative), batch).total
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_without_negatives_it_is_the_loss_of_pairs():
    objective = Supervised(Tiny(dim=2), temperature=0.5, hard_negative_weight=2.0)
    assert objective.loss((Z, POSITIVE), BATCH).total.item() == pytest.approx(0.330085, abs=1e-6)


def test_negatives_are_encoded_if_the_batch_has_them():
    objective = Supervised(Tiny())
    pairs = {"anchor": texts(3, 1), "positive": texts(3, 2)}
    assert len(objective.views(batch_of(pairs))) == 2
    views = objective.views(batch_of({**pairs, "negative2": texts(3, 4), "negative": texts(3, 3)}))
    found = [view.tokens.ids.tolist() for view in views]
    assert found == [tokenize(texts(3, seed)).ids.tolist() for seed in (1, 2, 3, 4)]


def test_a_second_encoder_reads_positives_and_negatives():
    objective = Supervised(Tiny(), temperature=0.5, second="copy").double()
    with torch.no_grad():
        objective.twin.layer += 0.3
    batch = batch_of({role: texts(3, seed) for seed, role in enumerate(("anchor", "positive", "negative"))})
    anchors = objective.encoder(batch.tokens("anchor"))
    others = torch.cat([objective.twin(batch.tokens(role)) for role in ("positive", "negative")])
    cosines = torch.nn.functional.cosine_similarity(anchors[:, None], others[None], dim=2)
    expected = torch.nn.functional.cross_entropy(cosines / 0.5, torch.arange(3))
    found = loss_and_backward(objective, batch, chunk_rows=2).loss.total
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)
    assert objective.trained_model().encoder is objective.encoder


def test_the_trained_model_keeps_the_head_by_default():
    kept = Supervised(Tiny(), head="cls_mlp")
    assert kept.trained_model().head is kept.head is not None
    assert Supervised(Tiny(), head="cls_mlp", keep_head=False).trained_model().head is None
    assert Supervised(Tiny()).trained_model().head is None
