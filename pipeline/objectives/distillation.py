"""Distillation: match another encoder's vectors (Reimers & Gurevych 2020) or similarities (SEED, 2021)."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.losses.contrastive import cosines
from pipeline.losses.distillation import embedding_distillation, similarity_distillation
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, PositiveFloat, Roles, View
from pipeline.objectives.fixed_encoder import FixedEncoder
from pipeline.settings.training import TextRole

_MIN_TEXTS = 3  # with two texts, each has one candidate, whose softmax is always 1


@OBJECTIVES.register("distillation")
class Distillation(Objective):
    """Learn from a fixed `teacher`: an encoder folder, used without dropout and with its own tokenizer.

    The teacher is not part of the trained or saved state. `match` chooses the loss. With "similarity", a text
    has a distribution over the other texts of all ranks: the softmax of cosines / temperature. The loss is
    the KL divergence of the student's distribution from the teacher's, in nats (after SEED, Fang et al.
    2021). The dimensions of student and teacher may differ. With "embedding" the loss is the mean squared
    error of the vectors. `roles` names the columns of texts, which are all compared together. To learn from
    human scores instead use `regression`.
    """

    columns: tuple[str, ...] = ("text",)
    allows_truncation = True

    def __init__(
        self,
        encoder: nn.Module,
        *,
        teacher: str,
        match: Literal["embedding", "similarity"] = "similarity",
        temperature: PositiveFloat = 0.05,
        roles: tuple[TextRole, ...] = ("text",),
    ) -> None:
        super().__init__(encoder)
        self.columns, self.match, self.temperature = roles, match, temperature
        self.min_rows = _MIN_TEXTS if match == "similarity" else 1
        self.teacher = FixedEncoder(teacher)
        if match == "embedding" and self.teacher.encoder.dim != self.dim:
            raise ConfigError(
                "distillation: match",
                "a teacher of the encoder's dimension, because match is embedding",
                f"dimension {self.teacher.encoder.dim} of {teacher} for an encoder of {self.dim}",
                "set match to similarity, or use another teacher",
            )

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> Roles:
        columns = options.get("roles")
        return Roles(tuple(map(str, columns)) if isinstance(columns, list | tuple) else cls.columns)

    @classmethod
    def check_batch(cls, options: Mapping[str, JsonValue], rows: int, *, all_ranks: bool) -> None:
        texts = rows * len(cls.roles(options).required)
        if options.get("match", "similarity") == "similarity" and texts < _MIN_TEXTS:
            raise ConfigError(
                "distillation: match similarity",
                f"batches of {_MIN_TEXTS} texts or more",
                f"{texts}",
                "raise the batch size, or set match to embedding",
            )

    def views(self, batch: Batch) -> Sequence[View]:
        return [*super().views(batch), *self.teacher.views(batch, self.columns, self.encoder)]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        students, teachers = reps[: len(self.columns)], reps[len(self.columns) :]
        if self.match == "embedding":
            return Loss.of(embedding=embedding_distillation(torch.cat(students), torch.cat(teachers)))
        scores = self._scores(students, batch)
        return Loss.of(
            divergence=similarity_distillation(
                scores,
                self._scores(teachers, batch),
                temperature=self.temperature,
                excluded=self._same_text(scores, batch),
            )
        )

    def truncate(self, reps: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        """Truncate the student's vectors, and the teacher's if vectors are compared entry by entry."""
        students, teachers = reps[: len(self.columns)], reps[len(self.columns) :]
        return (
            *super().truncate(students, dim),
            *(super().truncate(teachers, dim) if self.match == "embedding" else teachers),
        )

    def _scores(self, columns: Sequence[Tensor], batch: Batch) -> Tensor:
        """Compute the cosines (texts, candidates) of this rank's texts with the texts of all ranks.

        Texts and candidates are ordered column by column.
        """
        candidates = torch.cat([batch.peers.gather(column) for column in columns])
        return cosines(torch.cat(list(columns)), candidates)

    def _same_text(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return (texts, candidates) bool: True where a candidate is the text itself."""
        texts = torch.arange(len(scores), device=scores.device)
        column, row = texts // len(batch), texts % len(batch)
        candidates_per_column = scores.shape[1] // len(self.columns)
        itself = column * candidates_per_column + batch.offset + row
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, itself[:, None], True)
