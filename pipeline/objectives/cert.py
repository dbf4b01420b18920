"""CERT (Fang et al. 2020): momentum contrast (He et al. 2020) of two back-translations of a text, against a queue of earlier keys."""

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, cast

import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.losses import enqueue, moco, moving_average, random_queue
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.heads import drawn
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, View

_QUEUE = 96_606  # keys, as published; no multiple of the batches there, nor need it be one
_WIDTH = 128  # of queries and keys, as published


class Projection(nn.Module):
    """Linear(d, d), ReLU, Linear(d, width): (n, d) -> (n, width), newly drawn."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden, self.out = drawn(nn.Linear(dim, dim)), drawn(nn.Linear(dim, width))

    def forward(self, vectors: Tensor) -> Tensor:
        projected: Tensor = self.out(self.hidden(vectors).relu())
        return projected


@OBJECTIVES.register("cert")
class Cert(Objective):
    """A query picks its key, which a slowly following copy of encoder and head made, among that and `queue` earlier ones: cosines of their projections.

    Reads anchor and positive, which are two back-translations of a text; or, where `pairs` is false, text, whose views differ by dropout. What goes into the head is
    the encoder's own vector; the paper's is that of pooling cls_mlp, BERT's pooler.

    When a step is done its keys, of all ranks in their order, take the place of the oldest ones (before, each would be its own query's negative too). Then the
    parameters of the copies become momentum * theirs + (1 - momentum) * the trained ones, before the next keys, as published (equation 2 of MoCo), and buffers are
    copied. The queue begins with random directions, from torch's generator as new weights are: ranks that begin alike hold one queue, as long as each sees the rows of
    all others (setting train.across_ranks).
    """

    columns: tuple[str, ...] = ("anchor", "positive")
    least_rows = 1  # what a row is compared with is in the queue
    positives = True
    remembers = True
    queue: Tensor
    pointer: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: Positive = 0.07,
        queue: Annotated[int, Field(ge=1)] = _QUEUE,
        momentum: Annotated[float, Field(ge=0, le=1)] = 0.999,
        width: Annotated[int, Field(ge=1)] = _WIDTH,
        pairs: bool = True,
    ) -> None:
        super().__init__(encoder)
        self.temperature, self.momentum, self.columns = temperature, momentum, self.roles({"pairs": pairs})[0]
        self.head = Projection(self.dim, width)
        self.slow_encoder, self.slow_head = (
            copy.deepcopy(module).requires_grad_(False) for module in (self.encoder, self.head)
        )
        self.register_buffer("queue", random_queue(queue, width, torch.default_generator))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return cls.columns if options.get("pairs", True) else ("text",), ()

    @classmethod
    def check_batch(cls, options: Mapping[str, JsonValue], rows: int, *, everyone: bool) -> None:
        places = int(cast(int, options.get("queue", _QUEUE)))
        if rows > places:
            raise ConfigError(
                "queue of cert",
                f"room for the {rows:,} keys of a batch",
                f"{places:,} places",
                "lengthen the queue, or make the batch smaller",
            )
        if not everyone:
            raise ConfigError(
                "train.across_ranks",
                "true for cert, whose one queue holds the keys of all ranks",
                "false",
                "leave it out, or train with one worker",
            )

    def views(self, batch: Batch) -> Sequence[View]:
        query, key = self.columns[0], self.columns[-1]
        return View(self.encoder, batch.tokens(query)), View(self.slow_encoder, batch.tokens(key), grad=False)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        return Loss.of(
            moco=moco(self.head(reps[0]), self._keys(reps[1]), self.queue, temperature=self.temperature)
        )

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        keys = batch.peers.gather(nn.functional.normalize(self._keys(reps[1]), dim=1))
        queue, pointer = enqueue(self.queue, keys, int(self.pointer))
        self.queue.copy_(queue)
        self.pointer.fill_(pointer)
        for slow, fast in ((self.slow_encoder, self.encoder), (self.slow_head, self.head)):
            self._follow(slow, fast)

    def doubts(self) -> list[str]:
        if len(self.columns) == 2 or cast(TrainableEncoder, self.encoder).backbone.drops:
            return []
        return [
            "cert: the encoder has no dropout, so that both views of a text are one vector but for the momentum; set train.dropout, or give pairs"
        ]

    def _keys(self, vectors: Tensor) -> Tensor:
        with torch.no_grad():
            keys: Tensor = self.slow_head(vectors)
            return keys

    def _follow(self, slow: nn.Module, fast: nn.Module) -> None:
        with torch.no_grad():
            for own, other in zip(slow.parameters(), fast.parameters(), strict=True):
                own.copy_(moving_average(own, other, momentum=self.momentum))
            for mine, its in zip(slow.buffers(), fast.buffers(), strict=True):
                mine.copy_(its)
