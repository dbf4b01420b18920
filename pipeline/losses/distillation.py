"""Distillation losses: match the embeddings or the similarities of a teacher, which gets no gradient."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.losses.checks import (
    at_least_float32,
    check_aligned,
    require_candidates,
    require_finite,
    require_positive,
    require_shape,
    shape_error,
)
from pipeline.losses.contrastive import MASKED_LOGIT


def embedding_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared error of student and teacher embeddings.

    Source: Reimers & Gurevych 2020, multilingual distillation, eq. 1. For a teacher of another dimension use
    `similarity_distillation`.

    Args:
        student: (N, D), already projected to the teacher's D.
        teacher: (N, D).

    Raises:
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> import torch
    >>> embedding_distillation(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]])).item()
    2.0
    """
    student, teacher = check_aligned("distillation", student=student, teacher=teacher.detach())
    return F.mse_loss(student, teacher.to(student.dtype))


def similarity_distillation(
    student: Tensor, teacher: Tensor, *, temperature: float, excluded: Tensor | None = None
) -> Tensor:
    """Mean over rows of KL(teacher || student), in nats, of softmax(scores / temperature).

    The loss is not multiplied by temperature^2, so gradients shrink as the temperature grows. To match the
    vectors themselves use `embedding_distillation`.

    Args:
        student: (Q, K) scores, for example cosines within a batch.
        teacher: (Q, K) scores, for example cosines or the output of a cross-encoder.
        temperature: divides the scores of both; > 0.
        excluded: (Q, K) bool, True where a column is not a candidate of the row, for example on the diagonal
            if a batch is compared with itself. Each row needs at least one candidate.

    Raises:
        ConfigError: a temperature that is not above 0, or a single candidate.
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> import torch
    >>> teacher = torch.tensor([[0.0, 1.0]])
    >>> similarity_distillation(teacher, teacher, temperature=0.5).item()
    0.0
    >>> student = torch.tensor([[0.0, 0.0]])
    >>> round(similarity_distillation(student, teacher, temperature=0.5).item(), 4)
    0.3278
    """
    require_positive("temperature", temperature)
    logits = [scores / temperature for scores in _check_scores(student, teacher)]
    if excluded is not None:
        require_shape("distillation", "excluded", excluded, *student.shape)
        logits = [scores.masked_fill(excluded, MASKED_LOGIT) for scores in logits]
    log_q, log_p = (F.log_softmax(scores, dim=1) for scores in logits)
    return F.kl_div(log_q, log_p.to(log_q.dtype), reduction="batchmean", log_target=True)


def margin_mse(student: Tensor, teacher: Tensor, *, missing: Tensor | None = None) -> Tensor:
    """Mean squared difference of the margins of student and teacher: the positive's score minus a negative's.

    Source: Hofstätter et al. 2020, section 3.2. It is the mean over rows of the mean over the negatives of a
    row. To match the distributions over all texts of a row, use `similarity_distillation`.

    Args:
        student: (N, 1 + K) scores of the positive and K negatives, such as inner products.
        teacher: (N, 1 + K) scores, for example of a cross-encoder.
        missing: (N, 1 + K) bool, True where a row has no such negative.

    Raises:
        ConfigError: no negative.
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> import torch
    >>> margin_mse(torch.tensor([[3.0, 1.0, 3.0]]), torch.tensor([[9.0, 8.0, 7.0]])).item()  # 2, 0 and 1, 2
    2.5
    """
    if missing is not None:
        require_shape("margin MSE", "missing", missing, *student.shape)
        student, teacher = student.masked_fill(missing, 0.0), teacher.masked_fill(missing, 0.0)
    student, teacher = _check_scores(student, teacher)
    margins = [scores[:, :1] - scores[:, 1:] for scores in (student, teacher.to(student.dtype))]
    used = torch.ones_like(margins[0]) if missing is None else (~missing[:, 1:]).to(margins[0])
    errors = (margins[0] - margins[1]).square() * used
    return (errors.sum(dim=1) / used.sum(dim=1).clamp_min(1.0)).mean()


def _check_scores(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Check that both have the same shape, with at least one row and two columns; convert to float32."""
    if student.dim() != 2 or not len(student):
        raise shape_error("distillation", "scores of shape (rows, candidates) with at least one row", student)
    require_shape("distillation", "teacher", teacher, *student.shape)
    require_candidates("distillation", student.shape[1])
    student, teacher = at_least_float32(student), at_least_float32(teacher.detach())
    return require_finite("scores of the student", student), require_finite("scores of the teacher", teacher)
