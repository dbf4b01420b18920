"""Supervised SimCSE: an anchor picks its positive among positives and hard negatives."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.objectives.build import data_requirements
from pipeline.objectives.supervised import Supervised
from pipeline.settings.training import TrainSettings
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


def requirements(**options: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    settings = TrainSettings(objective={"name": "supervised", "options": options})
    return data_requirements(settings)[:2]


def test_weights_of_own_hard_negatives_require_a_hard_negative_in_every_row():
    assert requirements(hardness=1.0) == (("anchor", "positive"), Supervised.optional)
    columns, optional = requirements(hardness=1.0, hardness_on="own")
    assert columns == ("anchor", "positive", "negative")
    assert "negative" not in optional


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": ["query_document", "query_query"], "softmax": "each"}, "softmax: expected joint"),
        ({"directions": ["document_query"]}, r"directions.*query_document first"),
        ({"directions": ["query_documents"]}, r"directions.*'query_document'"),
        ({"hardness": -1.0}, r"hardness: expected .*greater than or equal to 0"),
    ],
)
def test_wrong_directions_are_refused_before_a_worker_starts(options: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        requirements(**options)


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_of_all_directions_is_computed_from_the_candidates_that_are_not_false_negatives(
    masked: bool,
):
    """Row 0 has anchor 1, and row 1 has the negative of row 0, as false negatives."""
    directions = ("query_document", "document_query", "query_query", "document_document")
    objective = Supervised(Tiny(dim=2), temperature=0.5, directions=directions)
    excluded = np.array([[0, 1, 0, 0], [0, 0, 1, 0]], bool) & masked
    batch = replace(BATCH, false_negatives={"anchor": excluded})
    losses = []
    for row, other in ((0, 1), (1, 0)):
        pairs = {
            (Z[row], POSITIVE[row]): False,
            (Z[row], POSITIVE[other]): excluded[row, other],
            (Z[row], NEGATIVE[row]): excluded[row, 2 + row],
            (Z[row], NEGATIVE[other]): excluded[row, 2 + other],
            (POSITIVE[row], Z[row]): False,
            (POSITIVE[row], Z[other]): excluded[row, other],
            (Z[row], Z[other]): excluded[row, other],
            (POSITIVE[row], POSITIVE[other]): excluded[row, other],
            (POSITIVE[row], NEGATIVE[other]): excluded[row, 2 + other],
        }
        logits = [
            torch.nn.functional.cosine_similarity(*pair, dim=0) / 0.5
            for pair, left_out in pairs.items()
            if not left_out
        ]
        losses.append(torch.stack(logits).logsumexp(0) - logits[0])
    found = objective.loss((Z, POSITIVE, NEGATIVE), batch).total
    torch.testing.assert_close(found, torch.stack(losses).mean(), rtol=0, atol=1e-12)
