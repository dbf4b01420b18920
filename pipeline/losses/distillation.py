"""Learning from a teacher: its embeddings, the distances between its scores, or its distribution over candidates. No gradient reaches the teacher."""

import torch.nn.functional as F
from torch import Tensor

from pipeline.losses.checks import as_many, finite, misfit, positive, representations, several, shaped, wide
from pipeline.losses.contrastive import MASKED


def embedding_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of the entries of student and teacher (N, D), the student's already projected to the teacher's D.

    ModelError on values that are not finite, Defect on shapes. Reimers & Gurevych 2020 (multilingual by distillation), eq. 1.
    """
    student, teacher = representations("distillation", student=student, teacher=teacher.detach())
    as_many("distillation", len(student), teacher=teacher)
    return F.mse_loss(student, teacher.to(student.dtype))


def margin_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of the margins; student, teacher (N, 1 + M) scores of each query's positive, then of its M >= 1 negatives.

    A margin is the positive's score less a negative's: what is added to all scores of a row costs nothing. Errors as in `embedding_distillation`.
    Margin-MSE (Hofstätter et al. 2020), eq. 8.
    """
    student, teacher = _scores(student, teacher)
    return F.mse_loss(student[:, :1] - student[:, 1:], (teacher[:, :1] - teacher[:, 1:]).to(student.dtype))


def similarity_distillation(
    student: Tensor, teacher: Tensor, *, temperature: float, excluded: Tensor | None = None
) -> Tensor:
    """KL(teacher || student), in nats, of softmax(scores / temperature) over the candidates, mean over the rows; student, teacher (Q, K) scores.

    Scores are cosines of a batch, or a cross-encoder's. excluded (Q, K) bool: no candidates, as the diagonal where a batch is compared with itself; a row
    needs one that stays. Not multiplied by temperature^2: gradients fall with it. ConfigError on a temperature that is not above 0; further errors as above.
    """
    positive("temperature", temperature)
    logits = [each / temperature for each in _scores(student, teacher)]
    if excluded is not None:
        shaped("distillation", "excluded", excluded, *student.shape)
        logits = [each.masked_fill(excluded, MASKED) for each in logits]
    q, p = (F.log_softmax(each, dim=1) for each in logits)
    return F.kl_div(q, p.to(q.dtype), reduction="batchmean", log_target=True)


def _scores(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Both, checked: of one shape (rows, two or more)."""
    if student.dim() != 2 or not len(student):
        raise misfit("distillation", "scores of shape (rows, candidates) with at least one row", student)
    shaped("distillation", "teacher", teacher, *student.shape)
    several("distillation", student.shape[1])
    return finite("scores of the student", wide(student)), finite(
        "scores of the teacher", wide(teacher.detach())
    )
