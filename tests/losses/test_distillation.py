"""Distillation losses match their formulas, and the teacher gets no gradient."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from pipeline.errors import ConfigError, Defect
from pipeline.losses.contrastive import cosines
from pipeline.losses.distillation import embedding_distillation, similarity_distillation

RNG = np.random.default_rng(0)
S, T = (torch.from_numpy(RNG.normal(size=(6, 4))) for _ in range(2))
LOSSES = {
    "embedding": embedding_distillation,
    "similarity": lambda s, t: similarity_distillation(s, t, temperature=0.5),
}


def test_each_loss_matches_its_formula():
    s, t = S.numpy(), T.numpy()
    assert embedding_distillation(S, T).item() == pytest.approx(np.mean((s - t) ** 2), abs=1e-12)
    divergences = [
        entropy(teacher, student)
        for student, teacher in zip(softmax(s / 0.5, axis=1), softmax(t / 0.5, axis=1), strict=True)
    ]
    assert similarity_distillation(S, T, temperature=0.5).item() == pytest.approx(
        np.mean(divergences), abs=1e-12
    )


def test_the_diagonal_can_be_excluded():
    diagonal = torch.eye(6, dtype=torch.bool)
    student, teacher = cosines(S, S), cosines(T, T)
    off = [each.numpy()[~diagonal.numpy()].reshape(6, 5) for each in (student, teacher)]
    p, q = softmax(off[1] / 0.1, axis=1), softmax(off[0] / 0.1, axis=1)
    expected = np.mean([entropy(x, y) for x, y in zip(p, q, strict=True)])
    assert similarity_distillation(
        student, teacher, temperature=0.1, excluded=diagonal
    ).item() == pytest.approx(expected, abs=1e-10)


def test_similarities_allow_a_teacher_of_another_dimension():
    wide = torch.from_numpy(RNG.normal(size=(6, 11)))
    assert similarity_distillation(cosines(S, S), cosines(wide, wide), temperature=0.1).item() > 0


@pytest.mark.parametrize("name", LOSSES)
def test_equal_scores_give_zero_and_the_teacher_gets_no_gradient(name):
    assert LOSSES[name](S, S).item() == pytest.approx(0, abs=1e-15)
    student, teacher = S.clone().requires_grad_(), T.clone().requires_grad_()
    LOSSES[name](student, teacher).backward()
    assert student.grad.any()
    assert teacher.grad is None


def test_a_constant_added_to_a_row_of_scores_does_not_matter():
    shifted = similarity_distillation(S + torch.arange(6.0)[:, None], T, temperature=0.5).item()
    assert shifted == pytest.approx(similarity_distillation(S, T, temperature=0.5).item(), abs=1e-12)


def test_wrong_shapes_and_values_are_refused():
    with pytest.raises(Defect, match="teacher of shape"):
        embedding_distillation(S, T[:, :3])
    with pytest.raises(Defect, match="teacher with 6 rows"):
        embedding_distillation(S, T[:5])
    with pytest.raises(Defect, match="teacher of shape"):
        similarity_distillation(S, T[:5], temperature=1)
    with pytest.raises(ConfigError, match="at least two rows"):
        similarity_distillation(S[:, :1], T[:, :1], temperature=1)
    with pytest.raises(ConfigError, match="temperature"):
        similarity_distillation(S, T, temperature=0)
    with pytest.raises(Defect, match="excluded of shape"):
        similarity_distillation(S, T, temperature=1, excluded=torch.zeros(6, 6, dtype=torch.bool))
