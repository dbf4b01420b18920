"""Distillation of a cross-encoder's scores: each row alone, with some of its negatives missing."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from pipeline.objectives.score_distillation import ScoreDistillation
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import (
    Tiny,
    assert_halves_average_to_the_whole,
    assert_same,
    batch_of,
    pop_gradients,
    texts,
)

ROWS = 4
ROLES = ("anchor", "positive", "negative", "negative2")
SCORES = np.array([[9.0, 1, 2], [4, 5, np.nan], [7, 0, -3], [1, 2, np.nan]])
BATCH = batch_of({**{role: texts(ROWS, seed) for seed, role in enumerate(ROLES)}, "scores": SCORES})


def build(**options: object) -> ScoreDistillation:
    return ScoreDistillation(Tiny(), **options)


def student_scores(objective: ScoreDistillation) -> np.ndarray:
    """Return (ROWS, 3) inner products, or cosines."""
    anchors, *others = (objective.encoder(BATCH.tokens(role)).detach().numpy() for role in ROLES)
    if objective.similarity == "cosine":
        anchors, *others = (each / np.linalg.norm(each, axis=1)[:, None] for each in (anchors, *others))
    return np.stack([(anchors * each).sum(axis=1) for each in others], axis=1)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("teacher_temperature", [1.0, 4.0])
def test_margins_are_those_of_the_negatives_that_a_row_has(similarity: str, teacher_temperature: float):
    objective = build(similarity=similarity, teacher_temperature=teacher_temperature)
    student, teacher, errors = student_scores(objective), SCORES / teacher_temperature, []
    for row in range(ROWS):
        present = [index for index in (1, 2) if np.isfinite(SCORES[row, index])]
        margins = [
            (student[row, 0] - student[row, index]) - (teacher[row, 0] - teacher[row, index])
            for index in present
        ]
        errors.append(np.mean(np.square(margins)))
    assert loss_and_backward(objective, BATCH).loss.total.item() == pytest.approx(np.mean(errors), abs=1e-12)


def test_distributions_are_over_the_texts_that_a_row_has():
    objective = build(match="distribution", temperature=0.5, teacher_temperature=3.0)
    student, losses = student_scores(objective), []
    for row in range(ROWS):
        present = np.isfinite(SCORES[row])
        p, q = log_softmax(SCORES[row, present] / 3.0), log_softmax(student[row, present] / 0.5)
        losses.append((np.exp(p) * (p - q)).sum())
    assert loss_and_backward(objective, BATCH).loss.total.item() == pytest.approx(np.mean(losses), abs=1e-12)


@pytest.mark.parametrize("match", ["margin", "distribution"])
def test_a_missing_negative_gets_no_gradient(match: str):
    objective = build(match=match)
    reps = tuple(view.encode().detach().requires_grad_() for view in objective.views(BATCH))
    objective.loss(reps, BATCH).total.backward()
    assert reps[3].grad[[1, 3]].abs().max() == 0
    assert reps[3].grad[[0, 2]].abs().min(dim=1).values.min() > 0


@pytest.mark.parametrize("match", ["margin", "distribution"])
def test_ranks_and_chunks_train_as_one_process(match: str):
    objective = build(match=match)
    assert_halves_average_to_the_whole(objective, BATCH)
    loss_and_backward(objective, BATCH)
    known = pop_gradients(objective)
    for limits in ({"chunk_rows": 1}, {"chunk_rows": 3}, {"chunk_tokens": 30}):
        loss_and_backward(objective, BATCH, **limits)
        assert_same(pop_gradients(objective), known)


def test_a_student_with_the_scores_of_the_teacher_has_zero_loss():
    anchors = torch.eye(ROWS).double()
    others = [torch.diag(torch.from_numpy(np.nan_to_num(column))) for column in SCORES.T]
    for match in ("margin", "distribution"):
        assert build(match=match).loss((anchors, *others), BATCH).total.item() == pytest.approx(0, abs=1e-12)
