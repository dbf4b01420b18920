"""Learning from another encoder: its vectors (Reimers & Gurevych 2020, equation 1), or which texts it holds for alike (after SEED: Fang et al. 2021)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.losses import cosines, embedding_distillation, similarity_distillation
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, View
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.tokens import Tokenizer

Role = Literal["text", "sentence1", "sentence2", "premise", "hypothesis", "anchor", "positive", "negative"]
_LEAST = 3  # texts whose similarities can be told apart


@OBJECTIVES.register("distillation")
class Distillation(Objective):
    """`teacher` is an encoder's folder: it stays as it is, without dropout, under its own tokenizer, and is no part of what is trained or saved.

    match: similarity: the softmax of each text's cosines with the other texts of all ranks, over the temperature, is as the teacher's (divergence, in nats), whatever the
    dimensions; embedding: the vectors themselves are (mean squared difference of the entries). roles: whose texts these are; of several, all together.
    """

    columns: tuple[str, ...] = ("text",)
    truncates = True
    _teacher: TrainableEncoder

    def __init__(
        self,
        encoder: nn.Module,
        *,
        teacher: str,
        match: Literal["embedding", "similarity"] = "similarity",
        temperature: Positive = 0.05,
        roles: tuple[Role, ...] = ("text",),
    ) -> None:
        super().__init__(encoder)
        self.columns, self.match, self.temperature = roles, match, temperature
        self.least_rows = _LEAST if match == "similarity" else 1
        loaded = load_trainable(open_folder(EncoderSettings(path=teacher))).eval().requires_grad_(False)
        if match == "embedding" and loaded.dim != self.dim:
            found = f"{loaded.dim} of {teacher} for an encoder of {self.dim}"
            raise ConfigError(
                "distillation: match",
                "a teacher of the encoder's dimension, for embedding",
                found,
                "set match to similarity, or name another teacher",
            )
        object.__setattr__(
            self, "_teacher", loaded
        )  # past nn.Module: no part of the parameters, of the state, or of train()
        self._tokenizer: Tokenizer | None = None  # loaded with the first batch: it does not pickle

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tokenizer": None}

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        named = options.get("roles", cls.columns)
        return (tuple(map(str, named)) if isinstance(named, list | tuple) else cls.columns), ()

    @classmethod
    def check_batch(cls, options: Mapping[str, JsonValue], rows: int, *, everyone: bool) -> None:
        texts = rows * len(cls.roles(options)[0])
        if options.get("match", "similarity") == "similarity" and texts < _LEAST:
            expected = (
                f"{_LEAST} texts or more, since of two each has one other, which is nothing to tell apart"
            )
            raise ConfigError(
                "distillation: match similarity",
                expected,
                f"{texts}",
                "make the batch larger, or set match to embedding",
            )

    def views(self, batch: Batch) -> Sequence[View]:
        teacher, tokenize = self._ready()
        students = [View(self.encoder, batch.tokens(role)) for role in self.columns]
        return [
            *students,
            *(
                View(teacher, tokenize([str(text) for text in batch.column(role)]), grad=False)
                for role in self.columns
            ),
        ]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        students, teachers = reps[: len(self.columns)], reps[len(self.columns) :]
        if self.match == "embedding":
            return Loss.of(embedding=embedding_distillation(torch.cat(students), torch.cat(teachers)))
        scores = [self._scores(each, batch) for each in (students, teachers)]
        return Loss.of(
            divergence=similarity_distillation(
                *scores, temperature=self.temperature, excluded=self._itself(scores[0], batch)
            )
        )

    def truncated(self, reps: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        """A shorter student against the whole teacher; entry by entry, against as many of it."""
        students, teachers = reps[: len(self.columns)], reps[len(self.columns) :]
        return (
            *super().truncated(students, dim),
            *(super().truncated(teachers, dim) if self.match == "embedding" else teachers),
        )

    def _ready(self) -> tuple[TrainableEncoder, Tokenizer]:
        """The teacher where the encoder is, and in its precision."""
        if self._tokenizer is None:
            self._tokenizer = self._teacher.folder.tokenizer()
        return self._teacher.to(next(self.encoder.parameters())), self._tokenizer

    def _scores(self, columns: Sequence[Tensor], batch: Batch) -> Tensor:
        """Cosines of this rank's texts with those of all ranks, a role after the other."""
        return cosines(torch.cat(list(columns)), torch.cat([batch.peers.gather(each) for each in columns]))

    def _itself(self, scores: Tensor, batch: Batch) -> Tensor:
        """(texts, candidates) bool: the same text."""
        rows = torch.arange(len(scores), device=scores.device)
        column, row = rows // len(batch), rows % len(batch)
        own = column * (scores.shape[1] // len(self.columns)) + batch.first + row
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, own[:, None], True)
