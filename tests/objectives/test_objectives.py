"""Batches, views and losses."""

import numpy as np
import pytest
import torch

from pipeline.errors import DataError
from pipeline.objectives import NO_PEERS, Batch, Loss, Objective, View
from pipeline.objectives.objective import row_terms_of
from tests.objectives.tiny import Tiny, batch_of, texts, tokenize


def test_a_batch_tokenizes_columns_and_selects_rows():
    batch = Batch(
        {"text": ["ab", "c", "def"], "score": np.array([1.0, 2.0, 3.0])},
        np.array([7, 8, 9]),
        tokenize,
        false_negatives={"text": np.ones((3, 3), bool)},
    )
    assert len(batch) == 3
    assert "text" in batch
    assert "label" not in batch
    assert batch.tokens("text").lengths.tolist() == [2, 1, 3]
    part = batch.of_rows(np.array([2, 0]))
    assert (part.columns["text"], part.columns["score"].tolist(), part.rows.tolist()) == (
        ["def", "ab"],
        [3.0, 1.0],
        [9, 7],
    )
    assert not part.false_negatives
    assert part.indices.tolist() == [2, 0]
    assert part.of_rows(np.array([1])).indices.tolist() == [0]
    assert batch.offset == 0
    assert batch.false_negative_mask("text", torch.device("cpu")).all()
    assert batch.false_negative_mask("anchor", torch.device("cpu")) is None


def test_missing_and_short_columns_are_refused():
    batch = Batch({"text": ["a", "b"], "score": np.zeros(3)}, np.arange(2), tokenize)
    with pytest.raises(DataError, match=r"the role anchor.*the roles score, text"):
        batch.tokens("anchor")
    with pytest.raises(DataError, match=r"2 values of score.*3"):
        batch.column("score")


def test_rows_of_a_view_keep_their_tokens_and_positions():
    tokens, rows = tokenize(texts(4)), np.array([3, 1])
    positions = np.random.default_rng(0).integers(0, 20, len(tokens.ids))
    view = View(Tiny(), tokens, positions=positions)
    part = view.of_rows(rows)
    torch.testing.assert_close(part.encode(), view.encode()[rows], rtol=0, atol=1e-14)
    assert part.positions.tolist() == [
        *positions[tokens.offsets[3] :],
        *positions[tokens.offsets[1] : tokens.offsets[2]],
    ]


def test_a_view_can_be_encoded_without_gradient():
    tokens = tokenize(texts(2))
    assert View(Tiny(), tokens).encode().requires_grad
    assert not View(Tiny(), tokens, grad=False).encode().requires_grad


def test_losses_add_up_and_scale_part_by_part():
    one = Loss.of(contrastive=torch.tensor(2.0, requires_grad=True), masked=torch.tensor(1.0))
    total = one + Loss.of(masked=torch.tensor(3.0), distance=torch.tensor(5.0)) * 0.5
    assert {name: part.item() for name, part in total.parts.items()} == {
        "contrastive": 2.0,
        "masked": 2.5,
        "distance": 2.5,
    }
    assert total.total.item() == 7.0
    assert total.total.requires_grad
    assert not total.detach().total.requires_grad
    assert Loss.of().total.item() == 0.0


def test_an_objective_without_row_terms_adds_no_loss():
    assert row_terms_of(Objective(Tiny()), (), batch_of({"text": ["a"]})).total.item() == 0.0


def test_without_peers_a_gathered_tensor_is_the_own_one():
    assert NO_PEERS.gather(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
