"""QuickThoughts: sentences pick their neighbours."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import DataError
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import Batch, Column
from pipeline.objectives.quickthoughts import QuickThoughts
from pipeline.settings import EncoderSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import save_folder
from tests.objectives.tiny import Tiny, batch_of, texts

F, G = torch.tensor([[1.0, 0], [0, 1], [1, 1]]).double(), torch.tensor([[1.0, 1], [1, 0], [0, 2]]).double()


def batch_of_rows(rows: int, documents: Column | None = None) -> Batch:
    """Return sentences in order, by default all of one document."""
    return batch_of(
        {
            "text": texts(rows),
            "document": ["a"] * rows if documents is None else documents,
            "position": np.arange(rows),
        }
    )


@pytest.mark.parametrize(("diag", "loss"), [("zero", 0.955552), ("mask", 0.813262)])
def test_the_loss_of_three_sentences_matches_a_hand_computation(diag: str, loss: float):
    assert QuickThoughts(Tiny(dim=2), diag=diag).loss((F, G), batch_of_rows(3)).total.item() == pytest.approx(
        loss, abs=1e-6
    )


def two_encodings(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random vectors (rows, 4) of both encoders."""
    f, g = torch.randn(2, rows, 4, generator=torch.Generator().manual_seed(0)).double()
    return f, g


def log_probabilities(f: torch.Tensor, g: torch.Tensor) -> np.ndarray:
    """Return (n, n): the log probability that sentence i picks sentence j, among all but itself."""
    scores = (f @ g.T).numpy()
    np.fill_diagonal(scores, -np.inf)
    return scores - np.log(np.exp(scores).sum(1, keepdims=True))


@pytest.mark.parametrize("documents", [["a", "a", "a", None, "b", "b"], ["a", "a", "a", "c", "b", "b"]])
def test_neighbours_are_from_the_same_document(documents: Column):
    f, g = two_encodings(6)
    logs = log_probabilities(f, g)
    of_three, of_two = [logs[0, 1], (logs[1, 0] + logs[1, 2]) / 2, logs[2, 1]], [logs[4, 5], logs[5, 4]]
    found = QuickThoughts(Tiny(dim=4)).loss((f, g), batch_of_rows(6, documents)).total.item()
    assert found == pytest.approx(-np.mean(of_three + of_two), abs=1e-12)


def test_documents_may_be_named_by_any_numbers():
    reps, objective = two_encodings(6), QuickThoughts(Tiny(dim=4))
    first, second = (
        objective.loss(reps, batch_of_rows(6, np.array(documents))).total
        for documents in ([4, 4, 4, 5, 5, 5], [-1, -1, -1, 9, 9, 9])
    )
    assert torch.equal(first, second)


def test_a_batch_without_neighbours_is_refused():
    with pytest.raises(DataError, match="neighbours from one document"):
        QuickThoughts(Tiny(dim=4)).loss(two_encodings(6), batch_of_rows(6, [None] * 6))


def test_sentences_on_both_sides_of_a_gap_are_not_neighbours():
    reps = two_encodings(6)
    adjacent = batch_of_rows(6, ["a"] * 6)
    with_gap = replace(adjacent, columns={**adjacent.columns, "position": np.array([0, 1, 2, 7, 8, 9])})
    of_two_documents = batch_of_rows(6, ["a", "a", "a", "b", "b", "b"])
    objective = QuickThoughts(Tiny(dim=4))
    found, expected, without_gap = (
        objective.loss(reps, batch).total.item() for batch in (with_gap, of_two_documents, adjacent)
    )
    assert found == expected
    assert found != without_gap


def test_false_negatives_are_excluded():
    alike = np.zeros((3, 3), bool)
    alike[0, 2] = alike[2, 0] = True
    loss = (
        QuickThoughts(Tiny(dim=2))
        .loss((F, G), replace(batch_of_rows(3), false_negatives={"text": alike}))
        .total.item()
    )
    # For the outer sentences the neighbour is the only candidate left.
    assert loss == pytest.approx(0.813262 / 3, abs=1e-6)


def test_a_wider_context_has_more_neighbours():
    f, g = two_encodings(5)
    logs = log_probabilities(f, g)
    expected = -np.mean([np.mean([logs[i, j] for j in range(5) if 0 < abs(i - j) <= 2]) for i in range(5)])
    found = QuickThoughts(Tiny(dim=4), context=2).loss((f, g), batch_of_rows(5)).total.item()
    assert found == pytest.approx(expected, abs=1e-12)


def test_both_encoders_are_trained_and_concatenated_in_the_trained_model():
    objective = QuickThoughts(Tiny()).double()
    loss_and_backward(objective, batch_of_rows(6))
    assert not torch.allclose(objective.encoder.words.grad, objective.twin.words.grad)
    assert objective.trained_model().twin is objective.twin
    assert objective.trained_model().dim == 2 * objective.dim
    alone = QuickThoughts(Tiny(), inference="first").trained_model()
    assert (alone.twin, alone.dim) == (None, 6)


def test_the_second_encoder_may_start_with_new_weights(tmp_path: Path):
    encoder = load_trainable(
        open_folder(EncoderSettings(path=str(save_folder(tmp_path / "bert", "bert")))), dropout=0.0
    )
    distance = {}
    for second in ("copy", "drawn"):
        objective = QuickThoughts(encoder, second=second)
        distance[second] = [
            (one - two).abs().max()
            for one, two in zip(objective.encoder.parameters(), objective.twin.parameters(), strict=True)
            if one.dim() > 1
        ]
    assert max(distance["copy"]) == 0
    assert min(distance["drawn"]) > 0.01


def test_one_encoder_may_serve_both_sides():
    objective = QuickThoughts(Tiny(), second="same").double()
    first, second = loss_and_backward(objective, batch_of_rows(4)).reps
    assert torch.equal(first, second)
    assert objective.trained_model().twin is None
