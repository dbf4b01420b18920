"""The Matryoshka loss is the weighted sum of a loss over truncated vectors."""

from functools import partial

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError, Defect
from pipeline.losses import info_nce, matryoshka, nt_xent, triplet

RNG = np.random.default_rng(0)
REPS = [torch.from_numpy(RNG.normal(size=(5, 8))) for _ in range(3)]
NCE = partial(info_nce, temperature=0.1)


@pytest.mark.parametrize(
    ("loss", "count"),
    [
        (NCE, 2),
        (partial(nt_xent, temperature=0.1), 2),
        (triplet, 3),
        (lambda q, k, n: info_nce(q, k, negatives=n, temperature=0.1), 3),
    ],
)
def test_the_loss_is_the_weighted_sum_over_lengths(loss, count):
    cut = {dim: loss(*(each[:, :dim] for each in REPS[:count])).item() for dim in (8, 4, 2)}
    assert matryoshka(loss, REPS[:count], dims=(8, 4, 2)).item() == pytest.approx(
        sum(cut.values()), abs=1e-12
    )
    weighted = matryoshka(loss, REPS[:count], dims=(8, 2), weights=(1, 0.25)).item()
    assert weighted == pytest.approx(cut[8] + 0.25 * cut[2], abs=1e-12)


def test_the_full_length_alone_is_the_plain_loss():
    assert matryoshka(NCE, REPS[:2], dims=[8]).item() == NCE(*REPS[:2]).item()


def test_dimensions_beyond_the_longest_length_get_no_gradient():
    queries = REPS[0].clone().requires_grad_()
    matryoshka(NCE, [queries, REPS[1]], dims=(2, 5)).backward()
    assert queries.grad[:, :5].all()
    assert not queries.grad[:, 5:].any()


@pytest.mark.parametrize("dims", [(), (8, 8), (0, 8), (9,), (-2,)])
def test_invalid_lengths_are_refused(dims):
    with pytest.raises(ConfigError, match="dims: expected distinct numbers from 1 to 8"):
        matryoshka(NCE, REPS[:2], dims=dims)


@pytest.mark.parametrize("weights", [(1,), (0, 0), (1, -1), (1, float("nan"))])
def test_invalid_weights_are_refused(weights):
    with pytest.raises(ConfigError, match="weights: expected 2 numbers"):
        matryoshka(NCE, REPS[:2], dims=(8, 4), weights=weights)


def test_representations_must_be_matrices():
    with pytest.raises(Defect, match="Matryoshka"):
        matryoshka(NCE, [REPS[0], REPS[1][0]], dims=(4,))
