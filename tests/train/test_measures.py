"""What is told of a step's vectors is what the definitions say, and is told only where it means something."""

import numpy as np
import pytest
import torch

from pipeline.objectives import OBJECTIVES
from pipeline.stats.geometry import alignment, cosines, uniformity
from pipeline.train.measures import MOST_ROWS, measured
from tests.objectives.tiny import Tiny

PAIRED = {"simcse", "contrastive_tension", "supervised", "consert", "cert", "pser", "triplet"}
OTHERS = {"classification", "regression", "quickthoughts"}


def views(count: int, dim: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(count, dim, generator=generator) + 0.5
    return left, left + 0.7 * torch.randn(count, dim, generator=generator)


def test_they_are_those_of_numpy_in_float64():
    left, right = views(40)
    x, y = left.double().numpy(), right.double().numpy()
    every = cosines(np.repeat(x, 40, 0), np.tile(y, (40, 1))).reshape(40, 40)
    negative = every[~np.eye(40, dtype=bool)].mean()
    expected = {
        "alignment": alignment(x, y),
        "uniformity": uniformity(x).value,
        "positive_cosine": cosines(x, y).mean(),
        "negative_cosine": negative,
    }
    assert measured((left, right), positives=True) == pytest.approx(expected, abs=2e-6)


def test_more_views_change_nothing_and_many_rows_cost_no_more():
    left, right = views(2 * MOST_ROWS)
    first = measured((left[:MOST_ROWS], right[:MOST_ROWS]), positives=True)
    assert measured((left, right, left), positives=True) == first


def test_ends_of_the_scales():
    same = torch.ones(8, 3)
    assert measured((same, same), positives=True) == pytest.approx(
        {"alignment": 0, "uniformity": 0, "positive_cosine": 1, "negative_cosine": 1}, abs=1e-6
    )
    apart = torch.eye(2) - torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # two opposite vectors
    assert measured((apart, -apart), positives=True) == pytest.approx(
        {"alignment": 4, "uniformity": -8, "positive_cosine": -1, "negative_cosine": 1}, abs=1e-5
    )


def test_without_pairs_there_is_uniformity_alone_and_of_one_row_nothing():
    left, right = views(5)
    assert measured((left, right), positives=False).keys() == {"uniformity"}
    assert measured((left,), positives=True).keys() == {"uniformity"}
    assert measured((left[:1], right[:1]), positives=True) == {}
    assert measured((), positives=True) == {}


def test_a_vector_of_zeros_is_no_accident():
    left, right = views(4)
    assert all(np.isfinite(value) for value in measured((left * 0, right.half()), positives=True).values())


@pytest.mark.parametrize("name", sorted(PAIRED | OTHERS))
def test_objectives_say_whether_their_views_are_pairs(name: str):
    assert OBJECTIVES[name](Tiny()).has_positive_pairs == (name in PAIRED)
