"""Weighted sum of several objectives that train one encoder."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from torch import Tensor, nn

from pipeline.objectives import AddsRowTerms, Batch, KeepsState, Loss, Objective, Roles, TrainedModel, View
from pipeline.objectives.objective import row_terms_of


@dataclass(frozen=True)
class Term:
    """Objective in a sum, the weight of its loss, and the prefix of the names of its loss's parts."""

    name: str
    weight: float
    objective: Objective
    source: str | None = None
    """name of the data source whose batches it trains on; None: those of all sources"""


class Composite(AddsRowTerms, KeepsState):
    """Base class of objectives that combine other objectives over the same rows.

    Each inner objective has its own views; the views of a step share a forward pass. The trained model
    is that of the first inner objective, with the first language head of an inner objective.
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
        self.inner = list(inner)  # a list, so that only the subclass's name for them is in `state_dict`
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
    """Weighted sum of objectives over the same rows, or over those of the source that a term is bound to.

    With bound terms this is multi-task training: each step trains the encoder and the heads of the terms of
    its batch, and leaves other heads as they are.
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
