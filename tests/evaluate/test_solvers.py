"""Lbfgs matches scikit-learn; Sgd matches plain torch, and stops early."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from pipeline.evaluate.solvers import build_solver, sgd
from pipeline.evaluate.solvers.logistic import Lbfgs
from pipeline.evaluate.solvers.sgd import Sgd


def clouds(
    classes: int, rows: int = 300, dim: int = 12, spread: float = 1.5, seed: int = 0, offset: float = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Draw Gaussian classes of different sizes, far from the origin, with one constant dimension."""
    rng = np.random.default_rng(seed)
    y = np.r_[
        np.arange(classes),
        rng.choice(classes, rows - classes, p=np.arange(1, classes + 1) / np.arange(1, classes + 1).sum()),
    ]
    x = rng.normal(size=(classes, dim))[y] + spread * rng.normal(size=(rows, dim)) + offset
    x[:, 0] = 2 * offset
    return x.astype(np.float32), y


@pytest.mark.parametrize("classes", [2, 4])
def test_every_part_and_strength_matches_scikit_learn(classes: int):
    x, y = clouds(classes)
    parts = np.random.default_rng(1).random((3, len(x))) < 0.8
    parts[:, :classes] = True
    found = Lbfgs().fit(x, y, classes, parts, Lbfgs.strengths)
    centred = x.astype(np.float64) - x.mean(axis=0)  # the same optimum, which scikit-learn reaches sooner
    assert found.converged
    for fold, part in enumerate(parts):
        for index, strength in ((0, Lbfgs.strengths[0]), (5, Lbfgs.strengths[5])):
            theirs = LogisticRegression(C=strength, tol=1e-9, max_iter=10_000).fit(centred[part], y[part])
            np.testing.assert_allclose(found.weights[fold, index], theirs.coef_, atol=2e-4)
            np.testing.assert_array_equal(found.predict(x)[fold, index], theirs.predict(centred))


def test_the_strongest_penalty_is_first():
    x, y = clouds(2)
    sizes = np.linalg.norm(
        Lbfgs().fit(x, y, 2, np.ones((1, len(x)), bool), Lbfgs.strengths).weights, axis=-1
    ).ravel()
    assert (np.diff(sizes) > 0).all()
    assert Sgd.strengths == tuple(sorted(Sgd.strengths, reverse=True))


def test_one_batch_is_one_step_of_adam():
    """Compare the batched model after one batch with torch's layers, loss and weight decay."""
    x, y = clouds(3, rows=60)
    decay = torch.tensor([0.01, 0.1])
    batches = sgd._Batches(
        torch.from_numpy(np.c_[x, np.ones(60)].astype(np.float32)),
        torch.from_numpy(y),
        3,
        np.ones((2, 60), bool),
        seed=0,
    )
    weights = Sgd(5)._initial_weights((2, 2, 3, 13))
    before = weights.clone()
    batches.epoch(weights, torch.optim.Adam([weights], lr=1e-3), decay)
    for fold in range(2):
        used = batches._train_rows[fold]
        for index in range(2):
            layer = torch.nn.Linear(12, 3)
            layer.weight.data = before[fold, index, :, :-1].clone()
            layer.bias.data = before[fold, index, :, -1].clone()
            optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, weight_decay=float(decay[index]))
            torch.nn.functional.cross_entropy(
                layer(torch.from_numpy(x[used])), torch.from_numpy(y[used])
            ).backward()
            optimizer.step()
            np.testing.assert_allclose(
                weights[fold, index, :, :-1].numpy(), layer.weight.detach().numpy(), atol=1e-6
            )
            np.testing.assert_allclose(
                weights[fold, index, :, -1].numpy(), layer.bias.detach().numpy(), atol=1e-6
            )


def test_rows_outside_a_part_do_not_matter():
    """Change the labels of rows outside a part."""
    x, y = clouds(2, rows=200)
    part = np.arange(200) < 150
    other = np.where(part, y, 1 - y)
    fits = [build_solver("sgd", 3).fit(x, labels, 2, part[None], (1e-4,)).weights for labels in (y, other)]
    np.testing.assert_array_equal(*fits)
    fits = [build_solver("lbfgs", 3).fit(x, labels, 2, part[None], (1.0,)).weights for labels in (y, other)]
    np.testing.assert_allclose(*fits, atol=1e-4)


def test_early_stopping_ends_training_and_seeds_repeat(monkeypatch: pytest.MonkeyPatch):
    x, y = clouds(2, rows=1_000, spread=0.8, offset=0)
    epochs = []
    plain = sgd._Batches.epoch
    monkeypatch.setattr(sgd._Batches, "epoch", lambda *arguments: (epochs.append(1), plain(*arguments)))
    fits = [Sgd(seed).fit(x, y, 2, np.ones((1, len(x)), bool), (1e-3,)) for seed in (1, 1, 2)]
    assert 3 < len(epochs) < 3 * sgd.MAX_EPOCHS
    np.testing.assert_array_equal(fits[0].weights, fits[1].weights)
    assert not np.array_equal(fits[0].weights, fits[2].weights)
    assert (fits[0].predict(x)[0, 0] == y).mean() > 0.9
