"""IS-BERT: the loss of a batch, its vectors for metrics, and the encoders that it can train."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pipeline.errors import ModelError
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import Batch, Loss, NoPeers, Objective
from pipeline.objectives.build import Sum, Term
from pipeline.objectives.is_bert import IsBert
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import TEXTS, folder_at, folder_of_language_model
from tests.objectives.tiny import batch_of, pop_gradients


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_language_model(tmp_path_factory.mktemp("encoder") / "bert")


def is_bert(path: Path, **settings: object) -> IsBert:
    torch.manual_seed(0)
    folder = folder_at(path, pooling="ngrams", **settings)
    return IsBert(load_trainable(folder, dropout=0.0)).double()


def batch_for(objective: Objective, texts: list[str]) -> Batch:
    return replace(batch_of({"text": texts}), tokenize=objective.encoder.folder.tokenizer())


def direct_loss(objective: IsBert, texts: list[str]) -> float:
    """Compute the loss sentence by sentence, each alone."""
    tokenize = objective.encoder.folder.tokenizer()
    with torch.no_grad():
        features = [objective.encoder.ngram_features(tokenize([text]))[0] for text in texts]
    vectors = [each.mean(dim=0) for each in features]
    total = 0.0
    for own, vector in enumerate(vectors):
        total += float(F.softplus(-features[own] @ vector).sum())
        others = [
            float(F.softplus(each @ vector).sum()) for other, each in enumerate(features) if other != own
        ]
        total += float(np.mean(others))
    return total / len(texts)


def test_the_loss_equals_that_of_each_sentence_alone(path: Path):
    objective, texts = is_bert(path), [*TEXTS[:6], *TEXTS[8:]]
    outcome = loss_and_backward(objective, batch_for(objective, texts))
    assert outcome.loss.total.item() == pytest.approx(direct_loss(objective, texts), rel=1e-9)
    assert list(outcome.loss.parts) == ["jensen_shannon"]


def test_metrics_get_the_encoders_vectors(path: Path):
    objective = is_bert(path)
    batch = batch_for(objective, list(TEXTS[:6]))
    (vectors,) = loss_and_backward(objective, batch).reps
    np.testing.assert_allclose(vectors, objective.encoder(batch.tokens("text")).detach(), atol=1e-12)


def test_the_vectors_of_a_sum_are_those_of_each_objective(path: Path):
    class Plain(Objective):
        """One view, and a constant loss."""

        columns = ("text",)

        def loss(self, reps: tuple[torch.Tensor, ...], batch: Batch) -> Loss:
            return Loss.of(sum=reps[0].sum())

    objective = is_bert(path)
    total = Sum(
        objective.encoder, [Term("is_bert", 1.0, objective), Term("plain", 0.0, Plain(objective.encoder))]
    )
    batch = batch_for(total, list(TEXTS[:6]))
    first, second = loss_and_backward(total, batch).reps
    np.testing.assert_allclose(first, second, atol=1e-12)


def test_ranks_compare_features_with_the_vectors_of_all(path: Path):
    class Rank(NoPeers):
        """One of two ranks, which knows the vectors of both."""

        def __init__(self, rank: int, everyone: torch.Tensor) -> None:
            self.rank, self.everyone = rank, everyone

        def gather(self, z: torch.Tensor) -> torch.Tensor:
            parts = [*self.everyone.chunk(2)]
            torch.testing.assert_close(z.detach(), parts[self.rank], rtol=0, atol=1e-12)
            parts[self.rank] = z
            return torch.cat(parts)

    objective, texts = is_bert(path), [*TEXTS[:6]]
    whole = batch_for(objective, texts)
    vectors = objective.encoder(whole.tokens("text")).detach()
    losses = [
        loss_and_backward(
            objective, replace(whole.of_rows(np.arange(3) + 3 * rank), peers=Rank(rank, vectors))
        ).loss.total.item()
        for rank in range(2)
    ]
    assert np.mean(losses) == pytest.approx(direct_loss(objective, texts), rel=1e-9)


def test_equal_sentences_are_no_negatives(path: Path):
    objective, texts = is_bert(path), [TEXTS[0], TEXTS[5], TEXTS[0], TEXTS[5]]
    batch = batch_for(objective, texts)
    alike = np.array([[first == second for second in texts] for first in texts]) & ~np.eye(4, dtype=bool)
    found = loss_and_backward(objective, replace(batch, false_negatives={"text": alike})).loss.total.item()
    assert found == pytest.approx(direct_loss(objective, texts[:2]), rel=1e-9)


def test_backbone_and_convolutions_are_trained(path: Path):
    objective = is_bert(path)
    loss_and_backward(objective, batch_for(objective, list(TEXTS[:6])))
    found = pop_gradients(objective)
    for part in ("backbone.", "ngrams.convolutions.0", "ngrams.convolutions.1", "ngrams.convolutions.2"):
        assert any(
            name.startswith(f"encoder.{part}") and value.abs().max() > 0 for name, value in found.items()
        )


@pytest.mark.parametrize("pooling", ["mean", "mean+ngrams"])
def test_another_pooling_is_refused(path: Path, pooling: str):
    with pytest.raises(ModelError, match=r"encoder.pooling: expected ngrams alone for is_bert"):
        IsBert(load_trainable(folder_at(path, pooling=pooling)))


def test_a_prompt_is_neither_a_feature_nor_part_of_the_vector(path: Path):
    objective = is_bert(path, prompt="two dogs ")
    batch = batch_for(objective, list(TEXTS[:6]))
    (vectors,) = loss_and_backward(objective, batch).reps
    np.testing.assert_allclose(vectors, objective.encoder(batch.tokens("text")).detach(), atol=1e-12)
