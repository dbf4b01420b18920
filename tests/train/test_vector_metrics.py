"""Metrics of a step's vectors match their definitions, and are omitted where they are undefined."""

import numpy as np
import pytest
import torch

from pipeline.objectives import OBJECTIVES
from pipeline.stats.geometry import alignment, cosines, uniformity
from pipeline.train.vector_metrics import MAX_ROWS, vector_metrics
from tests.objectives.tiny import Tiny, batch_of

PAIRED = {
    "cert",
    "consert",
    "contrastive_tension",
    "declutr",
    "guided",
    "optiprompt",
    "prompt",
    "prompt_supervised",
    "pser",
    "score_distillation",
    "simcse",
    "supervised",
    "triplet",
}


def views(count: int, dim: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(count, dim, generator=generator) + 0.5
    return left, left + 0.7 * torch.randn(count, dim, generator=generator)


def test_metrics_match_numpy_in_float64():
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
    assert vector_metrics((left, right), positives=True) == pytest.approx(expected, abs=2e-6)


def test_further_views_and_rows_are_ignored():
    left, right = views(2 * MAX_ROWS)
    first = vector_metrics((left[:MAX_ROWS], right[:MAX_ROWS]), positives=True)
    assert vector_metrics((left, right, left), positives=True) == first


def test_extreme_vectors_give_the_bounds():
    same = torch.ones(8, 3)
    assert vector_metrics((same, same), positives=True) == pytest.approx(
        {"alignment": 0, "uniformity": 0, "positive_cosine": 1, "negative_cosine": 1}, abs=1e-6
    )
    opposite = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert vector_metrics((opposite, -opposite), positives=True) == pytest.approx(
        {"alignment": 4, "uniformity": -8, "positive_cosine": -1, "negative_cosine": 1}, abs=1e-5
    )


def test_without_pairs_only_uniformity_is_measured():
    left, right = views(5)
    assert vector_metrics((left, right), positives=False).keys() == {"uniformity"}
    assert vector_metrics((left,), positives=True).keys() == {"uniformity"}
    assert vector_metrics((left[:1], right[:1]), positives=True) == {}
    assert vector_metrics((), positives=True) == {}


def test_zero_vectors_give_finite_metrics():
    left, right = views(4)
    metrics = vector_metrics((left * 0, right.half()), positives=True)
    assert metrics == {"uniformity": -4, "alignment": 2, "positive_cosine": 0, "negative_cosine": 0}


def test_objectives_whose_first_two_views_are_positive_pairs_declare_it():
    registered = {name: OBJECTIVES[name] for name in OBJECTIVES.names()}
    # a benchmark that another test imports registers an objective of its own
    ours = {name: each for name, each in registered.items() if each.__module__.startswith("pipeline.")}
    assert {name for name, each in ours.items() if each.has_positive_pairs} == PAIRED


@pytest.mark.parametrize("masks", ["own", "shared"])
def test_texts_with_shared_masks_are_not_pairs(masks: str):
    """With shared masks a batch has one view only."""
    objective = OBJECTIVES["simcse"](Tiny(), masks=masks)
    assert len(objective.views(batch_of({"text": ["a", "b"]}))) == (2 if masks == "own" else 1)
    assert objective.has_positive_pairs == (masks == "own")
