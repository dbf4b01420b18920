"""Regression of cosines on similarity scores."""

import warnings

import numpy as np
import pytest
import torch

from pipeline.objectives import Batch
from pipeline.objectives.regression import CosineRegression
from tests.objectives.tiny import Tiny, batch_of, texts


def pairs(scores: list[float]) -> Batch:
    return batch_of(
        {"sentence1": texts(len(scores), 1), "sentence2": texts(len(scores), 2), "score": np.array(scores)}
    )


def test_the_loss_of_one_pair_matches_a_hand_computation():
    reps = torch.tensor([[1.0, 2]]).double(), torch.tensor([[3.0, -1]]).double()
    found = CosineRegression(Tiny(dim=2)).loss(reps, pairs([0.6])).total.item()
    assert found == pytest.approx(0.210294, abs=1e-6)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_norms_of_vectors_do_not_matter(scale: float):
    left = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).double()
    right = torch.eye(3, 6).double()
    cosines = torch.nn.functional.cosine_similarity(left, right).numpy()
    found = CosineRegression(Tiny()).loss((left * scale, right), pairs([0.0, 0.5, 1.0])).total.item()
    assert found == pytest.approx(np.mean((cosines - [0, 0.5, 1]) ** 2), abs=1e-12)


def test_read_only_scores_give_no_warning():
    batch = pairs([0.2, 0.4])
    batch.columns["score"].flags.writeable = False  # as in a column read from a file
    reps = torch.eye(2).double(), torch.eye(2).double()
    with warnings.catch_warnings(action="error"):
        assert torch.isfinite(CosineRegression(Tiny(dim=2)).loss(reps, batch).total)
