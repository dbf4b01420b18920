"""Weighted sum of several objectives for one encoder."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from pipeline.objectives import Batch, Loss, Objective, Product, View


@dataclass(frozen=True)
class Term:
    """Objective in a sum, with the weight of its loss and the name that prefixes the names of its parts."""

    name: str
    weight: float
    objective: Objective


class Sum(Objective):
    """Weighted sum of objectives over the same rows; the product is that of the first.

    Each objective has its own views; all views of the encoder share a forward pass.
    """

    def __init__(self, encoder: nn.Module, terms: Sequence[Term]) -> None:
        super().__init__(encoder)
        self.names = _unique_names([term.name for term in terms])
        self.weights = [term.weight for term in terms]
        self.terms = nn.ModuleList(share_encoder(term.objective) for term in terms)
        self.columns = tuple(dict.fromkeys(role for each in self._objectives() for role in each.columns))
        optional = dict.fromkeys(role for each in self._objectives() for role in each.optional)
        self.optional = tuple(role for role in optional if role not in self.columns)
        self.has_positive_pairs = next(self._objectives()).has_positive_pairs
        self.has_stateful_loss = any(each.has_stateful_loss for each in self._objectives())
        self.min_rows = max(each.min_rows for each in self._objectives())
        self._sizes: list[int] = []  # views of each term in this step

    def views(self, batch: Batch) -> Sequence[View]:
        views = [each.views(batch) for each in self._objectives()]
        self._sizes = [len(own) for own in views]
        return [view for own in views for view in own]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        return self._weighted_sum([each.loss(own, batch) for each, own in self._split(reps)])

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        return self._weighted_sum([each.row_terms(own, batch) for each, own in self._split(outputs)])

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        for each, own in self._split(reps):
            each.after_step(own, batch)

    def product(self) -> Product:
        return next(self._objectives()).product()

    def candidates(self) -> tuple[Product, ...]:
        return next(self._objectives()).candidates()

    def select(self, candidate: int) -> None:
        next(self._objectives()).select(candidate)

    def classes(self, left: Tensor, right: Tensor) -> Tensor:
        return next(self._objectives()).classes(left, right)

    def warnings(self) -> list[str]:
        return [warning for each in self._objectives() for warning in each.warnings()]

    def _weighted_sum(self, losses: list[Loss]) -> Loss:
        total = Loss.of()
        for name, weight, loss in zip(self.names, self.weights, losses, strict=True):
            parts = {f"{name}.{part}": value for part, value in loss.parts.items()}
            total = total + Loss(loss.total, parts) * weight
        return total

    def _split(self, reps: tuple[Tensor, ...]) -> Iterator[tuple[Objective, tuple[Tensor, ...]]]:
        """Yield each objective with the vectors of its own views."""
        first = 0
        for each, size in zip(self._objectives(), self._sizes, strict=True):
            yield each, reps[first : first + size]
            first += size

    def _objectives(self) -> Iterator[Objective]:
        return (each for each in self.terms if isinstance(each, Objective))


def share_encoder(objective: Objective) -> Objective:
    """Take the encoder out of an objective's registered modules, so that the outer objective holds it once.

    The objective keeps using the encoder as before.
    """
    encoder = objective.encoder
    del objective.encoder
    object.__setattr__(objective, "encoder", encoder)  # nn.Module would register it
    return objective


def _unique_names(names: list[str]) -> list[str]:
    """Append numbers to repeated names, from the second on."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}{seen[name]}")
    return unique
