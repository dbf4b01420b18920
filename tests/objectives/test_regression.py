"""Cosines as near as people say."""

import warnings

import numpy as np
import pytest
import torch

from pipeline.objectives.regression import CosineRegression
from tests.objectives.tiny import Tiny, batch_of, texts


def pairs(scores: list[float]):
    return batch_of(
        {"sentence1": texts(len(scores), 1), "sentence2": texts(len(scores), 2), "score": np.array(scores)}
    )


def test_loss_of_a_known_pair():
    reps = torch.tensor([[1.0, 2]]).double(), torch.tensor([[3.0, -1]]).double()
    assert CosineRegression(Tiny(dim=2)).loss(reps, pairs([0.6])).total.item() == pytest.approx(
        0.210294, abs=1e-6
    )


def test_lengths_of_vectors_mean_nothing_and_scores_of_any_kind_do():
    objective, batch = CosineRegression(Tiny()), pairs([0.0, 0.5, 1.0])
    left, right = (
        torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).double(),
        torch.eye(3, 6).double(),
    )
    cosines = torch.nn.functional.cosine_similarity(left, right).numpy()
    for scale in (1.0, 100.0):
        assert objective.loss((left * scale, right), batch).total.item() == pytest.approx(
            np.mean((cosines - [0, 0.5, 1]) ** 2), abs=1e-12
        )


def test_scores_that_nobody_may_write_to_are_read_without_a_warning():
    batch = pairs([0.2, 0.4])
    batch.columns["score"].flags.writeable = False  # as those of a column in a file are
    with warnings.catch_warnings(action="error"):
        assert torch.isfinite(
            CosineRegression(Tiny(dim=2)).loss((torch.eye(2).double(), torch.eye(2).double()), batch).total
        )
