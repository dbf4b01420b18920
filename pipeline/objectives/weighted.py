"""Weighted sum of several objectives for one encoder."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor, nn

from pipeline.objectives import Batch, Loss, Objective, Product, View


@dataclass(frozen=True)
class Term:
    """Objective in a sum, with the weight of its loss and the name that prefixes the names of its parts."""

    name: str
    weight: float
    objective: Objective


class Composite(Objective):
    """Base of objectives around other objectives over the same rows; the product is that of the first.

    Each inner objective has its own views; all views of the encoder share a forward pass.
    """

    def __init__(self, encoder: nn.Module, inner: Sequence[Objective]) -> None:
        super().__init__(encoder)
        for each in inner:
            del each.encoder  # unregister it, so that the outer objective alone holds it
            each.set_unregistered("encoder", encoder)
        self.columns, self.optional = merged_roles([(each.columns, each.optional) for each in inner])
        self.has_positive_pairs = inner[0].has_positive_pairs
        self.has_stateful_loss = any(each.has_stateful_loss for each in inner)
        self.min_rows = max(each.min_rows for each in inner)
        self._sizes: list[int] = []  # number of views of each inner objective in this step

    @property
    def inner(self) -> list[Objective]:
        """Objectives that this one is made of."""
        raise NotImplementedError

    def views(self, batch: Batch) -> Sequence[View]:
        views = [each.views(batch) for each in self.inner]
        self._sizes = [len(own) for own in views]
        return [view for own in views for view in own]

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        for each, own in self.split(reps):
            each.after_step(own, batch)

    def product(self) -> Product:
        return self.inner[0].product()

    def candidates(self) -> tuple[Product, ...]:
        return self.inner[0].candidates()

    def select(self, candidate: int) -> None:
        self.inner[0].select(candidate)

    def classes(self, left: Tensor, right: Tensor) -> Tensor:
        return self.inner[0].classes(left, right)

    def warnings(self) -> list[str]:
        return [warning for each in self.inner for warning in each.warnings()]

    def split(self, reps: tuple[Tensor, ...]) -> Iterator[tuple[Objective, tuple[Tensor, ...]]]:
        """Yield each inner objective with the vectors of its own views."""
        rest = iter(reps)
        for each, size in zip(self.inner, self._sizes, strict=True):
            yield each, tuple(islice(rest, size))


class Sum(Composite):
    """Weighted sum of objectives over the same rows."""

    def __init__(self, encoder: nn.Module, terms: Sequence[Term]) -> None:
        super().__init__(encoder, [term.objective for term in terms])
        self.names = _unique_names([term.name for term in terms])
        self.weights = [term.weight for term in terms]
        self.terms = nn.ModuleList(term.objective for term in terms)

    @property
    def inner(self) -> list[Objective]:
        return [each for each in self.terms if isinstance(each, Objective)]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        return self._weighted_sum(each.loss(own, batch) for each, own in self.split(reps))

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        return self._weighted_sum(each.row_terms(own, batch) for each, own in self.split(outputs))

    def _weighted_sum(self, losses: Iterable[Loss]) -> Loss:
        named = (
            Loss(loss.total, {f"{name}.{part}": value for part, value in loss.parts.items()}) * weight
            for name, weight, loss in zip(self.names, self.weights, losses, strict=True)
        )
        return sum(named, Loss.of())


def merged_roles(
    roles: Sequence[tuple[tuple[str, ...], tuple[str, ...]]],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the distinct roles of all `columns`, and those of all `optional` that are not among them."""
    columns = dict.fromkeys(role for required, _ in roles for role in required)
    optional = dict.fromkeys(role for _, used in roles for role in used)
    return tuple(columns), tuple(role for role in optional if role not in columns)


def _unique_names(names: list[str]) -> list[str]:
    """Append numbers to repeated names, from the second on."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}{seen[name]}")
    return unique
