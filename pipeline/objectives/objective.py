"""Base class of training objectives, the value of their loss, and the model that a training produces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.post_pooling import DenseModule
from pipeline.models.trainable.classifier import Classifier
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.mlm_head import LanguageHead
from pipeline.objectives.batch import Batch
from pipeline.objectives.view import View
from pipeline.settings.training import TEXTS, Measure
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
class TrainedModel:
    """Result of a training: the modules that inference uses."""

    encoder: TrainableEncoder
    """the trained encoder"""
    head: DenseModule | None = None
    """layer after the encoder that inference keeps, or None"""
    twin: TrainableEncoder | None = None
    """second encoder, whose vectors are appended to those of the first, or None"""
    language_head: LanguageHead | None = None
    """head for masked words that is saved with the encoder, or None. No vector depends on it"""
    classifier: Classifier | None = None
    """classifier of the encoder's vectors that is saved with it, or None"""

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


class Roles(NamedTuple):
    """Roles of the columns that objectives read."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    """roles of columns that are used if they exist"""


class Objective(nn.Module):
    """Training objective: the views of a batch to encode, and the loss of their vectors.

    An objective holds the encoder that it trains and any heads, second encoders and queues; a checkpoint
    stores its `state_dict`. Random numbers come from torch's generators. Most objectives need `columns`,
    `views` and `loss`; an objective that does more, such as predicting classes, extends one of the classes
    below.

    The keyword arguments of `__init__` are the objective's options in the settings, with the paper's
    defaults. An option without a default is the path of an encoder folder. An instance overrides those of the
    following class attributes that depend on its options.
    """

    columns: tuple[str, ...] = ()
    """roles of the columns that it requires.

    Roles of `adjacent.ADJACENT`, such as next, are made from the rows before and after; the role position
    makes each batch consecutive sentences of documents
    """
    optional: tuple[str, ...] = ()
    """roles of the columns that it uses if they exist"""
    min_rows: int = 2
    """smallest number of rows of a step, over all peers, for which the loss is defined"""
    allows_truncation: bool = False
    """True if the loss may be computed on truncated vectors, because no layer or queue depends on their full
    dimension"""
    has_positive_pairs: bool = False
    """True if row i of the first view and row i of the second mean the same, and other rows do not"""
    numbers_rows: ClassVar[bool] = False
    """True if it has weights for each row; row numbers are then unique over all sources, because each
    source's numbers continue after the previous source's"""
    encoder: TrainableEncoder

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = cast(TrainableEncoder, encoder)  # or a `ViewEncoder`, if the objective needs no folder
        self.dim = self.encoder.dim

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> Roles:
        """Return `columns` and `optional` of an instance with these options. The options may be invalid."""
        return Roles(cls.columns, cls.optional)

    @classmethod
    def correction(cls, options: Mapping[str, JsonValue], encoder: EncoderFolder) -> str | None:
        """Name a correction of this objective's code that changed what these options train; None without one.

        The name becomes part of a training's identity, so that a training from before the correction is not
        continued with the corrected computation. Trainings that did not change keep their identity.

        Args:
            options: options of the instance, which need not be valid.
            encoder: the encoder to train.
        """
        return None

    @classmethod
    def check_batch(cls, options: Mapping[str, JsonValue], rows: int, *, all_ranks: bool) -> None:
        """Check the batch size before the first step, beyond `min_rows`.

        Args:
            options: options of the instance.
            rows: number of rows of a step, over the ranks that are each other's peers.
            all_ranks: True if all ranks are each other's peers.

        Raises:
            ConfigError: the objective cannot train with such batches.
        """

    @property
    def parts(self) -> tuple["Objective", ...]:
        """The objectives that this one combines, or itself alone. Dev measures predictions of the first."""
        return (self,)

    def views(self, batch: Batch) -> Sequence[View]:
        """Return the views to encode, by default one per column of texts; called once per step.

        Views of one encoder share a forward pass if possible.
        """
        roles = (*self.columns, *(role for role in self.optional if role in batch))
        return [View(self.encoder, batch.tokens(role)) for role in roles if role in TEXTS]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        """Mean loss over this rank's rows, so that the mean over ranks is the mean over all rows.

        Runs no encoder. Vectors of other ranks come from `batch.peers.gather`. A loss that is not a mean over
        rows is computed from the gathered vectors of all ranks, so that all ranks get the same value.

        Args:
            reps: vectors (n, dim) of each view, in the order of `views`.
            batch: the rows of the step.
        """
        raise NotImplementedError

    def vectors(self, reps: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
        """Return the sentence vectors (n, dim) of each view, for metrics; by default `reps`.

        Args:
            reps: outputs of each view's encoder.
            batch: the same n rows.
        """
        return reps

    def truncate(self, reps: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        """Truncate the vectors of each view to `dim` dimensions."""
        return tuple(rep[:, :dim] for rep in reps)

    def trained_model(self) -> TrainedModel:
        """Return the result of the training; by default the encoder alone."""
        return TrainedModel(self.encoder)

    def warnings(self) -> list[str]:
        """Describe settings that are legal but probably unintended.

        Called before the first step, possibly on one rank alone, so it must not run the encoder.
        """
        return []

    def set_unregistered(self, name: str, module: nn.Module) -> None:
        """Set a module as an attribute that parameters(), state_dict() and train() do not see.

        Used for modules that are fixed, or that share their weights with a registered one.
        """
        object.__setattr__(self, name, module)


class AddsRowTerms(Objective):
    """Objective whose loss is, in part or as a whole, a mean of terms that are each computed from one row."""

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        """Return no loss by default: `row_terms` returns it."""
        return Loss.of()

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        """Mean over rows of the terms that are computed from one row alone, such as the loss of masked words.

        Called for some of the batch's rows at a time, so that it may run the encoder again on few rows.

        Args:
            outputs: vectors (n, dim) of each view, with their graph.
            batch: the same n rows of the step's batch.
        """
        raise NotImplementedError

    def tokens_beside_views(self, batch: Batch) -> int:
        """Count the tokens that `row_terms` reads beyond the views of the step's batch; by default none."""
        return 0


def row_terms_of(objective: Objective, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
    """Return the row terms of an objective, or no loss if it adds none."""
    return objective.row_terms(outputs, batch) if isinstance(objective, AddsRowTerms) else Loss.of()


class KeepsState(Objective):
    """Objective whose loss depends on earlier steps, as through a queue, and so changes for equal rows."""

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        """Update momentum encoders and queues after the weights have changed; `reps` are its `vectors`."""
        raise NotImplementedError


class OffersCandidates(Objective):
    """Objective with several possible results, of which the best on dev becomes the trained model."""

    def candidates(self) -> tuple[TrainedModel, ...]:
        """Return the possible results; without a dev set, the first is used."""
        raise NotImplementedError

    def select(self, candidate: int) -> None:
        """Choose the trained model by its index in `candidates`; the choice is part of the state."""
        raise NotImplementedError


class ClassifiesPairs(Objective):
    """Objective that trains a classifier of sentence pairs by their vectors; dev can measure its accuracy."""

    def predict_classes(self, left: Tensor, right: Tensor) -> Tensor:
        """Predict the class of each pair of vectors (n, dim): (n,) int64."""
        raise NotImplementedError


class PredictsRows(Objective):
    """Objective that predicts labels or scores, which dev measures instead of the vectors."""

    measures: ClassVar[tuple[Measure, ...]]
    """metrics of the predictions that dev can measure, the default first"""

    def prediction_tokens(self, batch: Batch) -> Tokens:
        """Tokenize the text, or the pair of texts, from which each row's prediction is made."""
        raise NotImplementedError

    def predict(self, vectors: Tensor) -> Tensor:
        """Predict the class or the score of each row: (n,).

        Args:
            vectors: (n, dim) vectors of `prediction_tokens`.
        """
        raise NotImplementedError


class MasksWords(Objective):
    """Objective that predicts masked words, whose probability dev can measure."""

    def mask(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Mask words of texts; `kept` marks the tokens to predict."""
        raise NotImplementedError

    def summed_log_likelihood(self, masked: Tokens, ids: np.ndarray) -> Tensor:
        """Sum log p(original token) over the tokens that `mask` marked: scalar.

        Args:
            masked: result of `mask`.
            ids: ids of the original tokens of the texts.
        """
        raise NotImplementedError
