"""Distillation losses: embeddings or similarities of a teacher. The teacher gets no gradient."""

import torch.nn.functional as F
from torch import Tensor

from pipeline.losses.checks import (
    at_least_float32,
    representations,
    require_candidates,
    require_finite,
    require_positive,
    require_rows,
    require_shape,
    shape_error,
)
from pipeline.losses.contrastive import MASKED_LOGIT


def embedding_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared error of student and teacher embeddings.

    Source: Reimers & Gurevych 2020, multilingual distillation, eq. 1.

    Args:
        student: (N, D), already projected to the teacher's D.
        teacher: (N, D).

    Raises:
        ModelError: values that are not finite.
        Defect: wrong shapes.
    """
    student, teacher = representations("distillation", student=student, teacher=teacher.detach())
    require_rows("distillation", len(student), teacher=teacher)
    return F.mse_loss(student, teacher.to(student.dtype))


def similarity_distillation(
    student: Tensor, teacher: Tensor, *, temperature: float, excluded: Tensor | None = None
) -> Tensor:
    """Mean over rows of KL(teacher || student), in nats, of softmax(scores / temperature).

    Not multiplied by temperature^2, so gradients shrink as the temperature grows.

    Args:
        student: (Q, K) scores, for example cosines within a batch.
        teacher: (Q, K) scores, for example cosines or the output of a cross-encoder.
        temperature: divides the scores of both; > 0.
        excluded: (Q, K) bool, True where a column is not a candidate of the row, for example the diagonal if
            a batch is compared with itself. Each row needs at least one candidate.

    Raises:
        ConfigError: a temperature that is not above 0, or a single candidate.
        ModelError: values that are not finite.
        Defect: wrong shapes.
    """
    require_positive("temperature", temperature)
    logits = [each / temperature for each in _scores(student, teacher)]
    if excluded is not None:
        require_shape("distillation", "excluded", excluded, *student.shape)
        logits = [each.masked_fill(excluded, MASKED_LOGIT) for each in logits]
    q, p = (F.log_softmax(each, dim=1) for each in logits)
    return F.kl_div(q, p.to(q.dtype), reduction="batchmean", log_target=True)


def _scores(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Check both score matrices: one shape, at least one row and two columns."""
    if student.dim() != 2 or not len(student):
        raise shape_error("distillation", "scores of shape (rows, candidates) with at least one row", student)
    require_shape("distillation", "teacher", teacher, *student.shape)
    require_candidates("distillation", student.shape[1])
    student, teacher = at_least_float32(student), at_least_float32(teacher.detach())
    return require_finite("scores of the student", student), require_finite("scores of the teacher", teacher)
