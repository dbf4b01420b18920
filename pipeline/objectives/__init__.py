"""What an encoder is trained for. One file per objective; the registry finds it.

An objective says which views of a batch it wants encoded and what their vectors cost. Its loss is a function of representations alone: so a step may gather negatives
from other ranks, or encode in chunks, without the objective knowing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Protocol, cast

import numpy as np
import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from pipeline.errors import DataError
from pipeline.models.trainable.backbones import AtEmbedding
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.heads import DenseModule
from pipeline.models.trainable.perturbations import PerText
from pipeline.registry import Registry
from pipeline.text.tokens.tokens import Tokens

Column = Sequence[str] | np.ndarray
Positive = Annotated[float, Field(gt=0)]
"""of an option: checked where objectives are built from settings"""


class Encodes(Protocol):
    """What a view asks of an encoder, which is a module."""

    dim: int

    def __call__(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """(n, dim). positions and at_embedding as in `View`."""
        ...


class Peers(Protocol):
    """The ranks whose rows are candidates for the rows of this one."""

    @property
    def rank(self) -> int: ...

    def gather(self, z: Tensor) -> Tensor:
        """(n, ...) of this rank -> (W n, ...) of all ranks, in their order. A gradient of every rank comes back to the rows that it is of. DataError where n differs."""
        ...


class Alone:
    """No other ranks: candidates are the rows at hand."""

    rank = 0

    def gather(self, z: Tensor) -> Tensor:
        return z


ALONE = Alone()


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of one step on one rank, by the roles of their columns."""

    columns: Mapping[str, Column]
    """role -> n texts, or n numbers"""
    rows: np.ndarray
    """(n,) int64: their numbers in the data set"""
    tokenize: Callable[[Sequence[str]], Tokens]
    peers: Peers = ALONE
    """whose rows are candidates too"""
    false_negatives: Mapping[str, np.ndarray] = field(default_factory=dict)
    """role -> (n, candidates) bool: candidate j says the same as row i without being its own positive; candidates of a text are the texts, those of an anchor a column of
    positives, then one of negatives if there is one, of all peers"""
    source: str = ""
    """whose rows they are"""
    places: np.ndarray | None = None
    """(n,) where its rows stand in the batch of the step, of which it is a part; None: it is that batch"""
    counts: Mapping[str, int] = field(default_factory=dict)
    """what is known of the rows of all ranks together: repeated, exchanged, blank"""

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, role: str) -> bool:
        return role in self.columns

    def column(self, role: str) -> Column:
        """Its n values. DataError where there is no such column, or it has another length."""
        if role not in self.columns:
            known = ", ".join(sorted(self.columns)) or "none"
            raise DataError(
                "training batch",
                f"a column with the role {role}",
                f"those with the roles {known}",
                "say which column of the data has this role",
            )
        if len(self.columns[role]) != len(self):
            raise DataError(
                "training batch",
                f"{len(self)} values of {role}",
                f"{len(self.columns[role])}",
                "give every row one value",
            )
        return self.columns[role]

    def tokens(self, role: str) -> Tokens:
        """Token ids of its n texts."""
        return self.tokenize(list(self.column(role)))

    def of_rows(self, places: np.ndarray) -> "Batch":
        """The rows at those places, for what each costs by itself: nothing is known of what is alike among other candidates."""
        columns = {role: _taken(values, places) for role, values in self.columns.items()}
        return replace(
            self,
            columns=columns,
            rows=self.rows[places],
            false_negatives={},
            places=places if self.places is None else self.places[places],
        )

    def excluded(self, role: str, device: torch.device) -> Tensor | None:
        """`false_negatives` of a text or an anchor, for a loss there; None where none are told."""
        return (
            torch.from_numpy(self.false_negatives[role]).to(device) if role in self.false_negatives else None
        )

    @property
    def first(self) -> int:
        """Where this rank's rows begin among the gathered ones."""
        return self.peers.rank * len(self)


def _taken(values: Column, places: np.ndarray) -> Column:
    return values[places] if isinstance(values, np.ndarray) else [values[place] for place in places]


@dataclass(frozen=True, eq=False)
class View:
    """n texts as one encoder is to see them: one for each row of the batch."""

    encoder: nn.Module
    tokens: Tokens
    grad: bool = True
    """False: a momentum encoder, or a teacher"""
    at_embedding: AtEmbedding | None = None
    """one that knows the texts is of this view alone"""
    positions: np.ndarray | None = None
    """(tokens,) int64 position of each token; None: 0, 1, 2 ... in each text"""
    undivided: str | None = None
    """why its rows cannot go through the encoder in chunks, as what a person is told; None: they can"""

    def of_rows(self, places: np.ndarray) -> "View":
        """The texts at those places alone."""
        positions = None if self.positions is None else self.positions[self._tokens_of(places)]
        change = (
            self.at_embedding.of_rows(places) if isinstance(self.at_embedding, PerText) else self.at_embedding
        )
        return replace(self, tokens=self.tokens.of_rows(places), positions=positions, at_embedding=change)

    def encode(self) -> Tensor:
        """(n, dim)."""
        with torch.set_grad_enabled(self.grad and torch.is_grad_enabled()):
            return cast(Encodes, self.encoder)(
                self.tokens, positions=self.positions, at_embedding=self.at_embedding
            )

    def _tokens_of(self, places: np.ndarray) -> np.ndarray:
        """Places of those texts' tokens."""
        offsets = self.tokens.offsets
        return np.concatenate([np.arange(offsets[place], offsets[place + 1]) for place in places])


@dataclass(frozen=True, eq=False)
class Loss:
    """A scalar to go down, and the parts that it is the sum of."""

    total: Tensor
    parts: Mapping[str, Tensor]

    @classmethod
    def of(cls, **parts: Tensor) -> "Loss":
        """The sum of scalars; zero of none."""
        return cls(sum(parts.values(), torch.zeros(())), parts)

    def __add__(self, other: "Loss") -> "Loss":
        """Parts of one name add up."""
        names = [*self.parts, *(name for name in other.parts if name not in self.parts)]
        parts = {
            name: sum((loss.parts[name] for loss in (self, other) if name in loss.parts), torch.zeros(()))
            for name in names
        }
        return Loss(self.total + other.total, parts)

    def __mul__(self, weight: float) -> "Loss":
        return Loss(self.total * weight, {name: part * weight for name, part in self.parts.items()})

    def detach(self) -> "Loss":
        """The same values without their graph."""
        return Loss(self.total.detach(), {name: part.detach() for name, part in self.parts.items()})


@dataclass(frozen=True, eq=False)
class Product:
    """What inference uses of what was trained."""

    encoder: TrainableEncoder
    head: DenseModule | None = None
    """a layer behind the encoder that stays"""
    twin: TrainableEncoder | None = None
    """a second encoder, whose vectors stand behind those of the first"""

    @property
    def dim(self) -> int:
        return self.encoder.dim + (0 if self.twin is None else self.twin.dim)

    def __call__(self, tokens: Tokens) -> Tensor:
        """(n, dim) vectors as inference will have them, where the modules are in eval()."""
        vectors = (
            self.encoder(tokens)
            if self.twin is None
            else torch.cat([self.encoder(tokens), self.twin(tokens)], dim=1)
        )
        return vectors if self.head is None else self.head(vectors)


class Objective(nn.Module):
    """Owns the encoder it trains, and heads, twins and queues beside it: its `state_dict` is what a checkpoint holds. Random numbers come from torch's generators.

    Keyword arguments of its `__init__` are the options of the settings: typed, with the defaults of its paper. One without a default is the path of an encoder's folder.
    What is told by class here may be narrowed by an instance, as its options want it.
    """

    columns: tuple[str, ...] = ()
    """roles that it reads"""
    optional: tuple[str, ...] = ()
    """roles that it reads where they are there"""
    order: ClassVar[Literal["shuffled", "contiguous"]] = "shuffled"
    """contiguous: rows of a batch are neighbours of one document"""
    least_rows: int = 2
    """rows that have to be compared with each other, those of all peers together, for the loss to mean anything"""
    truncates: bool = False
    """whether its loss may be taken of the vectors' first dimensions: no layer or queue of the vectors' width is in between"""
    positives: bool = False
    """whether row i of its first view and row i of its second mean the same, and other rows of them do not"""
    remembers: bool = False
    """whether its loss depends on earlier steps (a queue), so that the same rows cost something else later"""
    classifies: ClassVar[bool] = False
    """whether it trains a classifier of pairs, and has `classes`"""
    reads_folder: ClassVar[bool] = False
    """whether it needs an encoder with a folder: its tokenizer, or weights that are not the encoder's"""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.dim = cast(Encodes, encoder).dim  # nn.Module types its attributes as tensors and modules

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """`columns` and `optional` of an instance with these options, which need not be right."""
        return cls.columns, cls.optional

    @classmethod
    def check_batch(cls, options: Mapping[str, JsonValue], rows: int, *, everyone: bool) -> None:
        """ConfigError for what cannot be, beside `least_rows`. rows: of the ranks that see each other's; everyone: these are all ranks. Called before the first step."""

    def views(self, batch: Batch) -> Sequence[View]:
        """What is to be encoded; called once in a step. Views of one encoder share a forward pass where they can."""
        raise NotImplementedError

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        """Of the vectors (n, dim) of each view, in the order of `views`; candidates of other ranks come through `batch.peers`, one column at a time.

        A mean over this rank's rows: so the mean over ranks is that of all rows. It runs no encoder.
        """
        raise NotImplementedError

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        """Means of what each row costs by itself (masked words, the divergence of its two views): called with some rows at a time, which may run the encoder again."""
        return Loss.of()

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        """Called when the weights have moved, with the vectors of the step: momentum, queue."""

    def truncated(self, reps: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        """The vectors of each view as a loss of `dim` dimensions sees them."""
        return tuple(rep[:, :dim] for rep in reps)

    def product(self) -> Product:
        """What inference uses: the encoder alone, unless an objective keeps more."""
        return Product(cast(TrainableEncoder, self.encoder))

    def rivals(self) -> tuple[Product, ...]:
        """What may become the product: the best of them on dev, the first one where nothing is measured."""
        return (self.product(),)

    def choose(self, place: int) -> None:
        """Which of `rivals` is the product from now on; part of its state."""

    def classes(self, left: Tensor, right: Tensor) -> Tensor:
        """(n,) int64 class of each pair of sentences, by its two vectors (n, dim): where it `classifies`."""
        raise NotImplementedError

    def doubts(self) -> list[str]:
        """What is allowed and seldom meant, in sentences, to be said before the first step; one rank alone may ask, so it runs no encoder."""
        return []


OBJECTIVES: Registry[type[Objective]] = Registry("objective", __name__)
