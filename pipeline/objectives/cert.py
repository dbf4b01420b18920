"""CERT (Fang et al. 2020): momentum contrast (He et al. 2020) of two back-translations of a text."""

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, cast

import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.losses.momentum import enqueue, moco, moving_average, random_queue
from pipeline.models.layers.post_pooling import draw_weights
from pipeline.objectives import OBJECTIVES, Batch, KeepsState, Loss, PositiveFloat, Roles, View

_QUEUE_KEYS = 96_606  # as published; need not be a multiple of the batch size
_KEY_DIM = 128  # dimension of queries and keys, as published


class Projection(nn.Module):
    """Linear(d, d), ReLU, Linear(d, width), newly initialized: (n, d) -> (n, width)."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden, self.out = draw_weights(nn.Linear(dim, dim)), draw_weights(nn.Linear(dim, width))

    def forward(self, vectors: Tensor) -> Tensor:
        """Project vectors (n, d): (n, width)."""
        return cast(Tensor, self.out(self.hidden(vectors).relu()))


@OBJECTIVES.register("cert")
class Cert(KeepsState):
    """InfoNCE of each query with its key from a momentum encoder; the negatives are a queue of earlier keys.

    The momentum encoder is a slowly moving copy of the encoder and its head. Queries and keys are the vectors
    after the head, of dimension `width`, compared by their cosines / `temperature`. The columns "anchor" and
    "positive" are two back-translations of a text. With `pairs` false the column is "text", and both views
    are the same text, with different dropout masks. The paper puts the head on BERT's pooler: use an encoder
    with pooling cls_mlp.

    After a step, its keys (of all ranks, in rank order) replace the oldest keys of the queue. (Queued before
    the loss, they would be negatives of their own queries.) Then each parameter of the momentum encoder
    becomes momentum * slow + (1 - momentum) * fast (MoCo, equation 2), and its buffers are copied. The queue
    starts with random directions from torch's generator. Queues of different ranks stay equal if the ranks
    start with the same seed and see each other's rows (train.across_ranks=true). With large batches `simcse`
    and `supervised` need no queue.
    """

    columns: tuple[str, ...] = ("anchor", "positive")
    min_rows = 1  # rows are compared with the queue
    has_positive_pairs = True
    queue: Tensor
    pointer: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat = 0.07,
        queue: Annotated[int, Field(ge=1)] = _QUEUE_KEYS,
        momentum: Annotated[float, Field(ge=0, le=1)] = 0.999,
        width: Annotated[int, Field(ge=1)] = _KEY_DIM,
        pairs: bool = True,
    ) -> None:
        super().__init__(encoder)
        self.temperature, self.momentum = temperature, momentum
        self.columns = self.roles({"pairs": pairs}).required
        self.head = Projection(self.dim, width)
        self.slow_encoder, self.slow_head = (
            copy.deepcopy(module).requires_grad_(False) for module in (self.encoder, self.head)
        )
        self.register_buffer("queue", random_queue(queue, width, torch.default_generator))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> Roles:
        return Roles(cls.columns if options.get("pairs", True) else ("text",))

    @classmethod
    def check_batch(cls, options: Mapping[str, JsonValue], rows: int, *, all_ranks: bool) -> None:
        size = int(cast(int, options.get("queue", _QUEUE_KEYS)))
        if rows > size:
            raise ConfigError(
                "queue of cert",
                f"at least {rows:,}, the number of keys of a batch",
                f"{size:,}",
                "lengthen the queue, or lower the batch size",
            )
        if not all_ranks:
            raise ConfigError(
                "train.across_ranks",
                "true, because the queue of cert holds the keys of all ranks",
                "false",
                "leave train.across_ranks out, or train with one worker",
            )

    def views(self, batch: Batch) -> Sequence[View]:
        return [
            View(self.encoder, batch.tokens(self.columns[0])),
            View(self.slow_encoder, batch.tokens(self.columns[-1]), grad=False),
        ]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        return Loss.of(
            moco=moco(self.head(reps[0]), self._keys(reps[1]), self.queue, temperature=self.temperature)
        )

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        keys = batch.peers.gather(nn.functional.normalize(self._keys(reps[1]), dim=1))
        queue, pointer = enqueue(self.queue, keys, int(self.pointer))
        self.queue.copy_(queue)
        self.pointer.fill_(pointer)
        self._update_momentum_copy(self.slow_encoder, self.encoder)
        self._update_momentum_copy(self.slow_head, self.head)

    def warnings(self) -> list[str]:
        if len(self.columns) == 2 or self.encoder.backbone.has_dropout:
            return []
        return [
            "cert: the encoder has no dropout, so that both views of a text differ by the momentum alone; "
            "set train.dropout, or use pairs"
        ]

    @torch.no_grad()
    def _keys(self, vectors: Tensor) -> Tensor:
        """Project vectors (n, d) of the momentum encoder to keys (n, width)."""
        return cast(Tensor, self.slow_head(vectors))

    @torch.no_grad()
    def _update_momentum_copy(self, slow: nn.Module, fast: nn.Module) -> None:
        """Move the slow parameters towards the fast ones, and copy the buffers."""
        for slow_parameter, parameter in zip(slow.parameters(), fast.parameters(), strict=True):
            slow_parameter.copy_(moving_average(slow_parameter, parameter, momentum=self.momentum))
        for slow_buffer, buffer in zip(slow.buffers(), fast.buffers(), strict=True):
            slow_buffer.copy_(buffer)
