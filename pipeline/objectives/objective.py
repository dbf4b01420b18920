"""Base class of training objectives, their losses, and the encoder that a training produces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from pipeline.models.layers.post_pooling import DenseModule
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.objectives.batch import Batch
from pipeline.objectives.view import View
from pipeline.settings.training import TEXTS
from pipeline.text.tokens.tokens import Tokens


@dataclass(frozen=True, eq=False)
class Loss:
    """A scalar to minimize, and the named parts that add up to it."""

    total: Tensor
    parts: Mapping[str, Tensor]

    @classmethod
    def of(cls, **parts: Tensor) -> "Loss":
        """Add up scalars; the sum of no parts is 0."""
        return cls(sum(parts.values(), torch.zeros(())), parts)

    def __add__(self, other: "Loss") -> "Loss":
        """Add two losses; parts with the same name are added up."""
        return Loss(
            self.total + other.total,
            {
                name: sum((loss.parts[name] for loss in (self, other) if name in loss.parts), torch.zeros(()))
                for name in {**self.parts, **other.parts}
            },
        )

    def __mul__(self, weight: float) -> "Loss":
        return Loss(self.total * weight, {name: part * weight for name, part in self.parts.items()})

    def detach(self) -> "Loss":
        """Return the same values without their graph."""
        return Loss(self.total.detach(), {name: part.detach() for name, part in self.parts.items()})


@dataclass(frozen=True, eq=False)
class Product:
    """Trained modules that inference uses.

    Attributes:
        encoder: the trained encoder.
        head: layer after the encoder that inference keeps, or None.
        twin: second encoder, whose vectors are appended to those of the first, or None.
    """

    encoder: TrainableEncoder
    head: DenseModule | None = None
    twin: TrainableEncoder | None = None

    @property
    def dim(self) -> int:
        """Dimension of the vectors, without the head."""
        return self.encoder.dim + (0 if self.twin is None else self.twin.dim)

    def __call__(self, tokens: Tokens) -> Tensor:
        """Encode n texts as inference does, if the modules are in eval mode: (n, dim)."""
        vectors = self.encoder(tokens)
        if self.twin is not None:
            vectors = torch.cat([vectors, self.twin(tokens)], dim=1)
        return vectors if self.head is None else self.head(vectors)


class Objective(nn.Module):
    """Training objective: the views of a batch to encode, and the loss of their vectors.

    An objective owns the encoder that it trains and any heads, second encoders and queues; a checkpoint holds
    its `state_dict`. Random numbers come from torch's generators.

    The keyword arguments of `__init__` are the options in the settings: typed, with the defaults of the
    paper. An option without a default is the path of an encoder folder. An instance may override the class
    attributes below if its options require it.

    Attributes:
        columns: roles of the columns that it requires.
        optional: roles of the columns that it uses if they exist.
        order: "contiguous" if the rows of a batch must be consecutive sentences of a document.
        min_rows: smallest number of rows, over all peers, for which the loss is defined.
        allows_truncation: the loss may be computed on the first dimensions of the vectors, because no layer
            or queue depends on their full width.
        has_positive_pairs: row i of the first view and row i of the second mean the same, other rows do not.
        has_stateful_loss: the loss depends on earlier steps, for example through a queue, so that equal rows
            may have another loss later.
        classifies: it trains a classifier of sentence pairs, and implements `classes`.
        needs_folder: it needs an encoder from a folder, for its tokenizer or for weights outside the encoder.
    """

    columns: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    order: ClassVar[Literal["shuffled", "contiguous"]] = "shuffled"
    min_rows: int = 2
    allows_truncation: bool = False
    has_positive_pairs: bool = False
    has_stateful_loss: bool = False
    classifies: ClassVar[bool] = False
    needs_folder: ClassVar[bool] = False
    encoder: TrainableEncoder

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = cast(TrainableEncoder, encoder)  # or a `ViewEncoder`, if the objective needs no folder
        self.dim = self.encoder.dim

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return `columns` and `optional` of an instance with these options, which need not be valid."""
        return cls.columns, cls.optional

    @classmethod
    def check_batch(cls, options: Mapping[str, JsonValue], rows: int, *, everyone: bool) -> None:
        """Check the batch size before the first step, beyond `min_rows`.

        Args:
            options: options of the instance.
            rows: number of rows of the ranks that see each other's rows.
            everyone: these are all ranks.

        Raises:
            ConfigError: the objective cannot train with such batches.
        """

    def views(self, batch: Batch) -> Sequence[View]:
        """Return the views to encode, by default one per column of texts; called once per step.

        Views of one encoder share a forward pass if possible.
        """
        used = (*self.columns, *(role for role in self.optional if role in batch))
        return [View(self.encoder, batch.tokens(role)) for role in used if role in TEXTS]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        """Mean loss over this rank's rows, so that the mean over ranks is the mean over all rows.

        Runs no encoder. Candidates of other ranks come from `batch.peers`, one column at a time.

        Args:
            reps: vectors (n, dim) of each view, in the order of `views`.
            batch: the rows of the step.
        """
        raise NotImplementedError

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        """Mean of losses that concern single rows, for example masked words or the divergence of two views.

        Called with some of the rows at a time; may run the encoder again.
        """
        return Loss.of()

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        """Update momentum encoders and queues with the vectors of a step, after the weights have changed."""

    def truncated(self, reps: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        """Truncate the vectors of each view to `dim` dimensions."""
        return tuple(rep[:, :dim] for rep in reps)

    def product(self) -> Product:
        """Return the modules that inference uses; by default the encoder alone."""
        return Product(self.encoder)

    def candidates(self) -> tuple[Product, ...]:
        """Return the possible products: the best one on dev is used, or the first if there is no dev set."""
        return (self.product(),)

    def select(self, candidate: int) -> None:
        """Make an entry of `candidates` the product; the choice is part of the state."""

    def classes(self, left: Tensor, right: Tensor) -> Tensor:
        """Predict the class of each pair of vectors (n, dim): (n,) int64. Requires `classifies`."""
        raise NotImplementedError

    def warnings(self) -> list[str]:
        """Describe settings that are legal but probably unintended.

        Called before the first step, possibly on one rank alone, so it must not run the encoder.
        """
        return []

    def set_unregistered(self, name: str, module: nn.Module) -> None:
        """Set a module as an attribute that parameters(), state_dict() and train() do not see.

        For modules that are fixed, or that share their weights with a registered one.
        """
        object.__setattr__(self, name, module)
