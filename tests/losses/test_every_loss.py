"""Properties of every loss: invariances, exact gradients, float32 under autocast, and no silent NaN."""

import numpy as np
import pytest
import torch

from pipeline.errors import ModelError
from pipeline.losses.context import quick_thoughts
from pipeline.losses.contrastive import cosines, info_nce, nt_xent
from pipeline.losses.directions import Compared, directed_info_nce
from pipeline.losses.distillation import embedding_distillation, similarity_distillation
from pipeline.losses.divergence import pser, symmetric_divergence
from pipeline.losses.momentum import moco
from pipeline.losses.pairs import contrastive_tension, cosine_regression, triplet

ROWS, DIM = 6, 5
RNG = np.random.default_rng(0)
QUEUE = torch.from_numpy(RNG.normal(size=(9, DIM)))
LABELS = torch.tensor([1, 0, 0, 1, 0, 0])
SCORES = torch.linspace(-0.5, 1, ROWS, dtype=torch.float64)
COSINE = {  # loss of (x, y, order of the rows, for the labels)
    "info_nce": lambda x, y, order: info_nce(x, y, temperature=0.1),
    "hard_negatives": lambda x, y, order: info_nce(
        x, y, temperature=0.1, negatives=QUEUE[:ROWS][order].to(x.dtype), hard_negative_weight=2.0
    ),
    "all_directions": lambda x, y, order: directed_info_nce(
        Compared(x, (y, QUEUE[:ROWS][order].to(x.dtype)), x),
        temperature=0.1,
        directions=("query_document", "document_query", "query_query", "document_document"),
        hard_negative_weight=2.0,
    ),
    "nt_xent": lambda x, y, order: nt_xent(x, y, temperature=0.1),
    "moco": lambda x, y, order: moco(x, y.detach(), QUEUE.to(x.dtype), temperature=0.1),
    "regression": lambda x, y, order: cosine_regression(x, y, SCORES[order]),
    "pser_similarity": lambda x, y, order: pser(x, y, temperature=0.1, kl_on="similarity"),
    "similarity_distillation": lambda x, y, order: similarity_distillation(
        cosines(x, y), cosines(x.detach() ** 3, y.detach() ** 3), temperature=0.1
    ),
}
OTHER = {
    "triplet": lambda x, y, order: triplet(x, y, QUEUE[:ROWS][order].to(x.dtype), margin=20.0),
    "tension": lambda x, y, order: contrastive_tension(x, y, LABELS[order]),
    "divergence": lambda x, y, order: symmetric_divergence(x, y),
    "pser_embedding": lambda x, y, order: pser(x, y, temperature=0.1),
    "embedding_distillation": lambda x, y, order: embedding_distillation(x, y),
}
CONTEXT = {"quick_thoughts": lambda x, y, order: quick_thoughts(x, y)}
LOSSES = COSINE | OTHER | CONTEXT
IN_ORDER = torch.arange(ROWS)


def pair(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    rng = np.random.default_rng(1)
    return [torch.from_numpy(rng.normal(size=(ROWS, DIM))).to(dtype) for _ in range(2)]


@pytest.mark.parametrize("name", COSINE | OTHER)
def test_the_order_of_rows_does_not_matter(name):
    x, y = pair()
    expected = LOSSES[name](x, y, IN_ORDER).item()
    for seed in range(3):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(ROWS))
        assert LOSSES[name](x[order], y[order], order).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", sorted(set(COSINE) - {"similarity_distillation"}))
def test_losses_of_cosines_ignore_the_norms_of_vectors(name):
    x, y = pair()
    factors = torch.tensor([[1e-3], [0.5], [1], [2], [30], [1e4]], dtype=torch.float64)
    expected = COSINE[name](x, y, IN_ORDER).item()
    assert COSINE[name](x * factors, y, IN_ORDER).item() == pytest.approx(expected, abs=1e-10)
    assert COSINE[name](x, y * factors.flip(0), IN_ORDER).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    "name", sorted(set(LOSSES) - {"moco", "similarity_distillation", "embedding_distillation"})
)
def test_gradients_match_finite_differences(name):
    x, y = (each.requires_grad_() for each in pair())
    assert torch.autograd.gradcheck(lambda a, b: LOSSES[name](a, b, IN_ORDER), (x, y), atol=1e-6)


@pytest.mark.parametrize("name", ["moco", "embedding_distillation"])
def test_gradients_towards_fixed_targets_match_finite_differences(name):
    x, y = pair()
    assert torch.autograd.gradcheck(lambda a: LOSSES[name](a, y, IN_ORDER), (x.requires_grad_(),), atol=1e-6)


def test_gradients_of_similarity_distillation_match_finite_differences():
    x, y = pair()
    teacher = cosines(y, y)
    assert torch.autograd.gradcheck(
        lambda a: similarity_distillation(cosines(a, a), teacher, temperature=0.1),
        (x.requires_grad_(),),
        atol=1e-6,
    )


def test_gradients_with_excluded_candidates_match_finite_differences():
    x, y = (each.requires_grad_() for each in pair())
    excluded = torch.from_numpy(np.random.default_rng(2).random((ROWS, ROWS)) < 0.4)
    assert torch.autograd.gradcheck(lambda a, b: info_nce(a, b, temperature=0.1, excluded=excluded), (x, y))
    assert torch.autograd.gradcheck(
        lambda a, b: nt_xent(a, b, temperature=0.1, excluded=excluded | excluded.T), (x, y)
    )
    documents = torch.tensor([0, 0, 0, 1, 1, 2])
    for diag in ("mask", "zero"):
        assert torch.autograd.gradcheck(
            lambda a, b, diag=diag: quick_thoughts(a, b, documents=documents, diag=diag, excluded=excluded),
            (x, y),
        )


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_does_not_lower_the_precision(name):
    x, y = pair(torch.float32)
    expected = LOSSES[name](x, y, IN_ORDER)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = LOSSES[name](x, y, IN_ORDER)
    assert expected.dtype == found.dtype == torch.float32
    assert found.item() == expected.item()
    assert expected.item() == pytest.approx(LOSSES[name](*pair(), IN_ORDER).item(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_vectors_are_compared_in_float32(name, dtype):
    x, y = pair(dtype)
    found = LOSSES[name](x, y, IN_ORDER)
    assert found.dtype == torch.float32
    expected = LOSSES[name](x.float(), y.float(), IN_ORDER).item()
    assert found.item() == pytest.approx(expected, rel=1e-2)  # fixed third tensors are rounded too


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", LOSSES)
def test_nan_and_infinity_are_refused(name, side, value):
    given = pair()
    given[side][2, 1] = value
    with pytest.raises(ModelError, match="1 of 6 rows with NaN or infinity"):
        LOSSES[name](*given, IN_ORDER)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_a_scalar_and_does_not_modify_its_input(name):
    x, y = pair()
    before = x.clone(), y.clone()
    assert LOSSES[name](x, y, IN_ORDER).shape == ()
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
