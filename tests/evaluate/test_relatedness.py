"""The regressor on a scale matches torch with explicit target distributions, and scores real pairs."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.relatedness import STRENGTHS
from pipeline.evaluate.solvers.scale import predict_on_scale
from pipeline.evaluate.transfer import pair_features
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import random_vectors, save, task_of

PARTS = ["train"] * 90 + ["dev"] * 30 + ["test"] * 40


def scored(folder: Path, **changed: Any) -> Path:
    """Write pairs whose score is a function of their vectors, plus noise."""
    left, right = ([f"{side}{i}" for i in range(len(PARTS))] for side in "ab")
    x = random_vectors(4)([*left, *right])
    distance = np.abs(x[: len(PARTS)] - x[len(PARTS) :]).sum(axis=1)
    noise = np.random.default_rng(0).normal(scale=0.3, size=len(PARTS))
    columns = {"sentence1": left, "sentence2": right, "score": np.clip(5 - distance / 2 + noise, 0, 5)}
    return save(folder / "scored.parquet", columns | {"split": PARTS} | changed)


def targets(y: np.ndarray) -> np.ndarray:
    """Return (n, 6) target distributions on the scale from 0 to 5, as Tai et al. write them."""
    found = np.zeros((len(y), 6))
    for row, score in enumerate(y):
        floor = int(np.floor(score))
        found[row, floor] = 1 - (score - floor)
        if score > floor:
            found[row, floor + 1] = score - floor
    return found


def by_torch(x: np.ndarray, y: np.ndarray, strength: float, new: np.ndarray) -> np.ndarray:
    """Minimize the penalized divergence from the target distributions, and return the predicted means."""
    rows, wanted = torch.from_numpy(x), torch.from_numpy(targets(y))
    weights = torch.zeros(6, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=2_000, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logs = (rows @ weights.T + bias).log_softmax(dim=1)
        value = (
            strength * torch.nn.functional.kl_div(logs, wanted, reduction="sum") + weights.square().sum() / 2
        )
        value.backward()
        return value

    optimizer.step(loss)
    return (
        ((torch.from_numpy(new) @ weights.T + bias).softmax(dim=1) @ torch.arange(6.0).double())
        .detach()
        .numpy()
    )


@pytest.mark.parametrize("strength", [0.25, 16.0])
def test_predictions_match_torch_with_explicit_targets(strength: float):
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(80, 5)), rng.normal(size=(20, 5))
    y = np.r_[np.clip(2.5 + x @ rng.normal(size=5), 0, 5)[:-6], np.arange(6)]  # also whole scores
    found = predict_on_scale(x, y, [strength], new)
    assert found.converged
    np.testing.assert_allclose(found.values[0], by_torch(x, y, strength, new), atol=5e-3)


def test_without_information_the_prediction_is_the_mean_score():
    y = np.array([0, 0.5, 3.2, 4.9, 5])  # the means of the targets are the scores
    found = predict_on_scale(np.zeros((5, 2)), y, [1.0, 4.0], np.zeros((3, 2)))
    np.testing.assert_allclose(found.values, np.full((2, 3), y.mean()), atol=1e-3)


def test_a_scale_may_have_two_values_only():
    found = predict_on_scale(
        np.array([[-1.0], [1.0]]), np.array([3.0, 4.0]), [100.0], np.array([[-1.0], [1.0]])
    )
    assert 3 < found.values[0, 0] < 3.2
    assert 3.8 < found.values[0, 1] < 4


def test_the_value_is_the_correlation_on_test_with_the_strength_that_is_best_on_dev(tmp_path: Path):
    task = task_of("relatedness", scored(tmp_path))
    score, pairs = task.score(random_vectors(4)), task.pairs()
    features = pair_features(*np.split(random_vectors(4)([*pairs.left, *pairs.right]), 2)).astype(np.float64)
    train, dev, test = (np.array(PARTS) == name for name in ("train", "dev", "test"))
    on_dev = [by_torch(features[train], pairs.gold[train], each, features[dev]) for each in STRENGTHS]
    best = STRENGTHS[int(np.argmax([pearsonr(each, pairs.gold[dev])[0] for each in on_dev]))]
    assert score.facts["chosen"] == best
    predicted = by_torch(features[train], pairs.gold[train], best, features[test])
    assert score.value == pytest.approx(100 * pearsonr(predicted, pairs.gold[test])[0], abs=0.1)
    assert score.metrics["Spearman"] == pytest.approx(
        100 * spearmanr(predicted, pairs.gold[test])[0], abs=0.5
    )
    error = np.mean((predicted - pairs.gold[test]) ** 2)
    assert score.metrics["mean squared error"] == pytest.approx(error, rel=0.02)
    assert (score.count, score.facts["pairs"]) == (40, {"train": 90, "dev": 30, "test": 40})
    assert score.metric == "Pearson x100 of a regressor, chosen on dev"
    assert score.value > 50


def test_without_dev_the_strength_is_chosen_by_cross_validation(tmp_path: Path):
    file = scored(tmp_path, split=["train"] * 120 + ["test"] * 40)
    score = task_of("relatedness", file, EvaluateSettings(folds=3)).score(random_vectors(4))
    assert score.metric == "Pearson x100 of a regressor, chosen on 3-fold cross-validation on train"
    assert score.facts["chosen"] in STRENGTHS
    assert score.value > 50


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"split": ["train"] * 160}, "with rows of train and of test, found train"),
        ({"split": ["train"] * 100 + ["trial"] * 60}, "found train, trial"),
        ({"split": [None, *PARTS[1:]]}, "found train, dev, test and rows without one"),
        ({"score": [2.0] * 90 + [1.0, 2.0] * 35}, "different scores in the split train"),
        ({"split": ["train"] * 12 + ["test"] * 148}, "at least 20 pairs in the split train"),
        ({"score": [5.5] * 160}, "scores from 0 to 5"),
    ],
)
def test_unsuitable_splits_and_scores_are_refused(tmp_path: Path, changed: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        task_of("relatedness", scored(tmp_path, **changed))


def test_the_scale_is_an_option(tmp_path: Path):
    file = scored(tmp_path)
    with pytest.raises(DataError, match="scores from 1 to 5"):
        task_of("relatedness", file, options={"low": 1})
    with pytest.raises(ConfigError, match="did you mean 'high'"):
        task_of("relatedness", file, options={"hihg": 6})
    wider = task_of("relatedness", file, options={"high": 6})
    assert wider.digest != task_of("relatedness", file).digest
    assert wider.score(random_vectors(4)).facts["scale"] == "0 to 6"


@pytest.mark.slow
def test_the_packaged_encoder_has_its_measured_score_on_real_pairs(minilm, tmp_path: Path):
    folder = os.environ.get("MANTA_EVAL_DATA")
    if not folder:
        pytest.skip("MANTA_EVAL_DATA is not set to a folder of evaluation data")
    pairs = pq.read_table(Path(folder) / "sts/STSB-test.parquet")
    order, split = np.random.default_rng(0).permutation(len(pairs)), np.full(len(pairs), "train", object)
    split[order[:250]], split[order[250:600]] = "dev", "test"
    file = tmp_path / "stsb.parquet"
    pq.write_table(pairs.append_column("split", pa.array(split.tolist())), file)
    score = task_of("relatedness", file).score(minilm.encode)
    assert (score.value, score.metrics["Spearman"]) == pytest.approx((85.25, 84.11), abs=0.05)
    assert STRENGTHS[0] < score.facts["chosen"] < STRENGTHS[-1]
