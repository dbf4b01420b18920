"""Distillation: match another encoder's vectors (Reimers & Gurevych 2020) or similarities (SEED, 2021)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.losses import cosines, embedding_distillation, similarity_distillation
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, PositiveFloat, View
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.tokens import Tokenizer

Role = Literal["text", "sentence1", "sentence2", "premise", "hypothesis", "anchor", "positive", "negative"]
_MIN_TEXTS = 3  # of two texts each has one other text, so that its softmax is constant


@OBJECTIVES.register("distillation")
class Distillation(Objective):
    """Learn from a fixed `teacher`: an encoder folder, used without dropout and with its own tokenizer.

    The teacher is not part of the trained or saved state. `match`: "similarity" compares the softmax of each
    text's cosines with the other texts of all ranks, over the temperature, by the divergence in nats (after
    SEED, Fang et al. 2021); the dimensions may differ. "embedding" takes the mean squared error of the
    vectors. `roles`: columns whose texts are used, all together.
    """

    columns: tuple[str, ...] = ("text",)
    allows_truncation = True
    _teacher: TrainableEncoder

    def __init__(
        self,
        encoder: nn.Module,
        *,
        teacher: str,
        match: Literal["embedding", "similarity"] = "similarity",
        temperature: PositiveFloat = 0.05,
        roles: tuple[Role, ...] = ("text",),
    ) -> None:
        super().__init__(encoder)
        self.columns, self.match, self.temperature = roles, match, temperature
        self.min_rows = _MIN_TEXTS if match == "similarity" else 1
        loaded = load_trainable(open_folder(EncoderSettings(path=teacher))).eval().requires_grad_(False)
        if match == "embedding" and loaded.dim != self.dim:
            raise ConfigError(
                "distillation: match",
                "a teacher of the encoder's dimension, because match is embedding",
                f"dimension {loaded.dim} of {teacher} for an encoder of {self.dim}",
                "set match to similarity, or use another teacher",
            )
        self.set_unregistered("_teacher", loaded)
        self._tokenizer: Tokenizer | None = None  # loaded with the first batch, because it cannot be pickled

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tokenizer": None}

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        named = options.get("roles", cls.columns)
        return (tuple(map(str, named)) if isinstance(named, list | tuple) else cls.columns), ()

    @classmethod
    def check_batch(cls, options: Mapping[str, JsonValue], rows: int, *, everyone: bool) -> None:
        texts = rows * len(cls.roles(options)[0])
        if options.get("match", "similarity") == "similarity" and texts < _MIN_TEXTS:
            raise ConfigError(
                "distillation: match similarity",
                f"batches of {_MIN_TEXTS} texts or more",
                f"{texts}",
                "raise the batch size, or set match to embedding",
            )

    def views(self, batch: Batch) -> Sequence[View]:
        teacher, tokenize = self._teacher_on_device()
        texts = ([str(text) for text in batch.column(role)] for role in self.columns)
        return [*super().views(batch), *(View(teacher, tokenize(each), grad=False) for each in texts)]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        students, teachers = reps[: len(self.columns)], reps[len(self.columns) :]
        if self.match == "embedding":
            return Loss.of(embedding=embedding_distillation(torch.cat(students), torch.cat(teachers)))
        scores = [self._scores(each, batch) for each in (students, teachers)]
        return Loss.of(
            divergence=similarity_distillation(
                *scores, temperature=self.temperature, excluded=self._own_text(scores[0], batch)
            )
        )

    def truncated(self, reps: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        """Truncate the student's vectors; the teacher's too if vectors are compared entry by entry."""
        students, teachers = reps[: len(self.columns)], reps[len(self.columns) :]
        return (
            *super().truncated(students, dim),
            *(super().truncated(teachers, dim) if self.match == "embedding" else teachers),
        )

    def _teacher_on_device(self) -> tuple[TrainableEncoder, Tokenizer]:
        """Move the teacher to the encoder's device and precision; load its tokenizer at the first call."""
        if self._tokenizer is None:
            self._tokenizer = self._teacher.folder.tokenizer()
        return self._teacher.to(next(self.encoder.parameters())), self._tokenizer

    def _scores(self, columns: Sequence[Tensor], batch: Batch) -> Tensor:
        """Compute cosines of this rank's texts with those of all ranks, role by role."""
        return cosines(torch.cat(list(columns)), torch.cat([batch.peers.gather(each) for each in columns]))

    def _own_text(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return (texts, candidates) bool: True where a candidate is the text itself."""
        rows = torch.arange(len(scores), device=scores.device)
        column, row = rows // len(batch), rows % len(batch)
        own = column * (scores.shape[1] // len(self.columns)) + batch.offset + row
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, own[:, None], True)
