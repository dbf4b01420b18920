"""Build objectives from settings: check options, add weighted losses, truncate vectors."""

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any, Literal, NamedTuple

from pydantic import create_model
from torch import Tensor, nn

from pipeline.config import Settings, validated
from pipeline.errors import ConfigError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.objectives import (
    OBJECTIVES,
    AddsRowTerms,
    Batch,
    KeepsState,
    Loss,
    Objective,
    Roles,
    TrainedModel,
    View,
)
from pipeline.objectives.objective import row_terms_of
from pipeline.settings.training import TrainSettings
from pipeline.text.rows.adjacent import ADJACENT, RUNNING_TEXT


@dataclass(frozen=True)
class Term:
    """An objective in a sum: `weight` multiplies its loss, `name` prefixes the names of the loss's parts."""

    name: str
    weight: float
    objective: Objective
    source: str | None = None
    """name of the data source whose batches it trains on; None: all sources"""


class Composite(AddsRowTerms, KeepsState):
    """Base class of objectives that combine other objectives over the same rows.

    Each inner objective has its own views; the views of a step share a forward pass. The trained model is the
    first inner objective's, with the first language head that any inner objective has.
    """

    def __init__(self, encoder: nn.Module, inner: Sequence[Objective]) -> None:
        super().__init__(encoder)
        for objective in inner:
            del objective.encoder  # unregister it, so that `state_dict` has the encoder once
            objective.set_unregistered("encoder", encoder)
        self.columns, self.optional = merged_roles(
            [Roles(objective.columns, objective.optional) for objective in inner]
        )
        self.has_positive_pairs = inner[0].has_positive_pairs
        self.min_rows = max(objective.min_rows for objective in inner)
        self.inner = list(inner)  # a list, so that `state_dict` has them only under the subclass's name
        self._view_counts: list[int] = []  # views per objective trained in this step

    @property
    def parts(self) -> tuple[Objective, ...]:
        return tuple(part for objective in self.inner for part in objective.parts)

    def trained_on(self, batch: Batch) -> list[Objective]:
        """Return the inner objectives that a batch trains; by default all."""
        return self.inner

    def views(self, batch: Batch) -> Sequence[View]:
        views = [objective.views(batch) for objective in self.trained_on(batch)]
        self._view_counts = [len(group) for group in views]
        return [view for group in views for view in group]

    def vectors(self, reps: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
        of_each = [objective.vectors(own, batch) for objective, own in self.split(reps, batch)]
        return tuple(vectors for group in of_each for vectors in group)

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        for objective, vectors in self.split(reps, batch):
            if isinstance(objective, KeepsState):
                objective.after_step(vectors, batch)

    def trained_model(self) -> TrainedModel:
        model, *others = (objective.trained_model() for objective in self.inner)
        heads = (each.language_head for each in (model, *others))
        return replace(model, language_head=next((head for head in heads if head is not None), None))

    def tokens_beside_views(self, batch: Batch) -> int:
        added = (each for each in self.trained_on(batch) if isinstance(each, AddsRowTerms))
        return sum(objective.tokens_beside_views(batch) for objective in added)

    def warnings(self) -> list[str]:
        return [warning for objective in self.inner for warning in objective.warnings()]

    def split(self, reps: tuple[Tensor, ...], batch: Batch) -> Iterator[tuple[Objective, tuple[Tensor, ...]]]:
        """Yield each inner objective that the batch trains, with the vectors of its own views."""
        remaining = iter(reps)
        for objective, count in zip(self.trained_on(batch), self._view_counts, strict=True):
            yield objective, tuple(islice(remaining, count))


class Sum(Composite):
    """Weighted sum of objectives over the same rows; a term may be bound to the rows of one source.

    With bound terms this is multi-task training: each step trains the encoder and the heads of the terms for
    its batch's source; other heads stay unchanged.
    """

    def __init__(self, encoder: nn.Module, terms: Sequence[Term]) -> None:
        super().__init__(encoder, [term.objective for term in terms])
        self.names = _unique_names([term.name for term in terms])
        self.weights = [term.weight for term in terms]
        self.sources = [term.source for term in terms]
        if any(self.sources):
            self.has_positive_pairs = False  # not in the batches of every source
        self.terms = nn.ModuleList(term.objective for term in terms)

    def trained_on(self, batch: Batch) -> list[Objective]:
        return [self.inner[term] for term in self._terms_of(batch)]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        losses = (objective.loss(vectors, batch) for objective, vectors in self.split(reps, batch))
        return self._weighted_sum(losses, batch)

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        losses = (
            row_terms_of(objective, vectors, batch) for objective, vectors in self.split(outputs, batch)
        )
        return self._weighted_sum(losses, batch)

    def _terms_of(self, batch: Batch) -> list[int]:
        """Return the numbers of the terms that a batch trains."""
        return [term for term, source in enumerate(self.sources) if source in (None, batch.source)]

    def _weighted_sum(self, losses: Iterable[Loss], batch: Batch) -> Loss:
        """Add up the losses of the batch's terms, with weights, and prefix the names of their parts."""
        total = Loss.of()
        for term, loss in zip(self._terms_of(batch), losses, strict=True):
            name, weight = self.names[term], self.weights[term]
            parts = {f"{name}.{part}": value for part, value in loss.parts.items()}
            total = total + Loss(loss.total, parts) * weight
        return total


def merged_roles(roles: Sequence[Roles]) -> Roles:
    """Merge the roles that several objectives read; a role that one of them requires is required."""
    required = dict.fromkeys(role for each in roles for role in each.required)
    optional = dict.fromkeys(role for each in roles for role in each.optional)
    return Roles(tuple(required), tuple(role for role in optional if role not in required))


def _unique_names(names: list[str]) -> list[str]:
    """Append numbers to repeated names, from the second on: simcse, simcse2."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}{seen[name]}")
    return unique


class Matryoshka(Composite):
    """Sum of an objective's loss over truncated vectors (Kusupati et al. 2022, eq. 1, with weights 1).

    The terms of `row_terms` are added once, not for each length. The trained model returns vectors of full
    length, which `encoder.dim` truncates.
    """

    def __init__(self, encoder: nn.Module, objective: Objective, *, dims: Sequence[int]) -> None:
        """Wrap an objective.

        Args:
            encoder: the encoder of the objective.
            objective: the objective to compute at several lengths.
            dims: distinct lengths of the vectors.

        Raises:
            ConfigError: `dims` is empty, has repeated entries or exceeds the vectors' dimension.
        """
        super().__init__(encoder, [objective])
        if not dims or len(set(dims)) < len(dims) or not 1 <= min(dims) <= max(dims) <= self.dim:
            raise ConfigError(
                "train.matryoshka",
                f"distinct numbers from 1 to {self.dim}, the vectors' dimension",
                f"{list(dims)}",
                "correct the list",
            )
        self.objective, self.dims = objective, tuple(dims)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        losses = (self.objective.loss(self.objective.truncate(reps, dim), batch) for dim in self.dims)
        return sum(losses, Loss.of())

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        return row_terms_of(self.objective, outputs, batch)


Order = Literal["shuffled", "contiguous", "adjacent"]


class DataRequirements(NamedTuple):
    """Columns and order of rows that all objectives of a training, or of one of its sources, need."""

    columns: tuple[str, ...]
    """roles of the columns that the data must have"""
    optional: tuple[str, ...]
    """roles of the columns that are used if they exist"""
    order: Order
    """"contiguous" if a batch must be consecutive sentences of documents; "adjacent" if each row needs
    sentences before or after its text, which are made from the order of the rows (`adjacent_roles`)"""


def build_objective(settings: TrainSettings, encoder: nn.Module) -> Objective:
    """Build the objective in `settings` around an encoder.

    Several objectives, or a single one with a weight other than 1, become a weighted sum. If
    `train.matryoshka` lists dimensions, each objective is computed on vectors truncated to each of them. New
    weights are drawn from torch's generator.

    Raises:
        ConfigError: an unknown objective, invalid options, or an objective whose vectors cannot be truncated.
            The message names the position in the settings.
    """
    terms = [
        Term(term.name, term.weight, _build(settings, index, encoder), term.source)
        for index, term in enumerate(settings.objective)
    ]
    return terms[0].objective if len(terms) == 1 and terms[0].weight == 1 else Sum(encoder, terms)


def data_requirements(settings: TrainSettings) -> DataRequirements:
    """Return the columns and the order of rows that `settings` need, without building an objective.

    Raises:
        ConfigError: as in `build_objective`.
    """
    roles = _roles(settings)
    columns, optional = merged_roles(roles)
    orders: dict[str, Order] = {
        term.name: _order(each) for term, each in zip(settings.objective, roles, strict=True)
    }
    order = _common_order(orders)
    if order == "adjacent":
        stored = [role for role in columns if role not in ADJACENT]
        columns = tuple(dict.fromkeys([*stored, *RUNNING_TEXT]))
    return DataRequirements(columns, optional, order)


def adjacent_roles(settings: TrainSettings) -> tuple[str, ...]:
    """Return the roles of ADJACENT that the objectives of `settings` read."""
    return tuple(role for role in merged_roles(_roles(settings)).required if role in ADJACENT)


def _roles(settings: TrainSettings) -> list[Roles]:
    """Return the roles that each objective of `settings` reads."""
    classes = [OBJECTIVES[term.name] for term in settings.objective]
    return [objective.roles(_checked_options(settings, index)) for index, objective in enumerate(classes)]


def _order(roles: Roles) -> Order:
    """Return the order of rows that an objective with these roles needs."""
    if set(ADJACENT) & set(roles.required):
        return "adjacent"
    return "contiguous" if "position" in roles.required else "shuffled"


def _common_order(orders: Mapping[str, Order]) -> Order:
    """Return one order of rows for all objectives, given the order of each by name.

    If some objectives need an order, all get it, because the remaining ones can use any order.
    """
    needed = {name: order for name, order in orders.items() if order != "shuffled"}
    if len(set(needed.values())) > 1:
        raise ConfigError(
            "train.objective",
            "objectives that read rows in one order",
            ", ".join(f"{name} ({order})" for name, order in needed.items()),
            "train them one after the other",
        )
    return next(iter(needed.values()), "shuffled")


def corrections(settings: TrainSettings, encoder: EncoderFolder) -> dict[str, str]:
    """Return the corrections that changed a training with these settings, by objective.

    See `Objective.correction`.
    """
    named = {
        term.name: OBJECTIVES[term.name].correction(term.options, encoder) for term in settings.objective
    }
    return {name: correction for name, correction in named.items() if correction is not None}


def _build(settings: TrainSettings, index: int, encoder: nn.Module) -> Objective:
    """Build the objective at an index of `train.objective`."""
    term = settings.objective[index]
    objective = OBJECTIVES[term.name](encoder, **_checked_options(settings, index))
    if not settings.matryoshka:
        return objective
    if not objective.allows_truncation:
        raise ConfigError(
            "train.matryoshka",
            "objectives whose vectors can be truncated",
            f"{term.name}, which has a layer or a queue of the full dimension",
            "set its head to none if it has one, or leave train.matryoshka out",
        )
    return Matryoshka(encoder, objective, dims=settings.matryoshka)


def _checked_options(settings: TrainSettings, index: int) -> dict[str, Any]:
    """Check the options of one objective, and return them with the defaults filled in.

    Raises:
        ConfigError: an invalid option, or fewer classes than a data file has labels.
    """
    term = settings.objective[index]
    where = f"train.objective[{index}].options of {term.name}"
    checked = validated(_options_model(term.name), term.options, where)
    options = {name: getattr(checked, name) for name in type(checked).model_fields}
    for source in settings.data:
        if term.source not in (None, source.name):
            continue
        labels = source.values.labels
        if len(labels) > options.get("classes", len(labels)):
            raise ConfigError(
                f"{where}: classes",
                f"at least {len(labels)}, one per label of {source.uri}",
                f"{options['classes']}",
                f"raise classes, or list the labels of the file in `values` (now {', '.join(labels)})",
            )
    return options


def options_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of each option of an objective; a required option has no default."""
    schemas: dict[str, Any] = _options_model(name).model_json_schema().get("properties", {})
    return schemas


@cache
def _options_model(name: str) -> type[Settings]:
    """Create a pydantic model that validates the keyword arguments of an objective."""
    parameters = inspect.signature(OBJECTIVES[name], eval_str=True).parameters.values()
    fields: dict[str, Any] = {
        parameter.name: (
            parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,  # ... means required
        )
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return create_model(f"Options of {name}", __base__=Settings, **fields)
