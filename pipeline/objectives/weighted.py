"""Several objectives for one encoder, whose losses are added up."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from pipeline.objectives import Batch, Loss, Objective, Product, View


@dataclass(frozen=True)
class Term:
    """An objective of a sum. name: what the parts of its loss are called by; weight: of its loss."""

    name: str
    weight: float
    objective: Objective


class Sum(Objective):
    """Terms see the same rows, each in views of its own; all views of the encoder share a forward pass. The product is that of the first term."""

    def __init__(self, encoder: nn.Module, terms: Sequence[Term]) -> None:
        super().__init__(encoder)
        self.names, self.weights = _told_apart([term.name for term in terms]), [term.weight for term in terms]
        self.terms = nn.ModuleList(without_encoder(term.objective) for term in terms)
        self.columns = tuple(dict.fromkeys(role for each in self._objectives() for role in each.columns))
        self.optional = tuple(
            dict.fromkeys(
                role for each in self._objectives() for role in each.optional if role not in self.columns
            )
        )
        self.positives = next(self._objectives()).positives
        self.remembers = any(each.remembers for each in self._objectives())
        self.least_rows = max(each.least_rows for each in self._objectives())
        self._sizes: list[int] = []  # views of each term in this step

    def views(self, batch: Batch) -> Sequence[View]:
        views = [each.views(batch) for each in self._objectives()]
        self._sizes = [len(own) for own in views]
        return [view for own in views for view in own]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        return self._added([each.loss(own, batch) for each, own in self._shares(reps)])

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        return self._added([each.row_terms(own, batch) for each, own in self._shares(outputs)])

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        for each, own in self._shares(reps):
            each.after_step(own, batch)

    def product(self) -> Product:
        return next(self._objectives()).product()

    def rivals(self) -> tuple[Product, ...]:
        return next(self._objectives()).rivals()

    def choose(self, place: int) -> None:
        next(self._objectives()).choose(place)

    def classes(self, left: Tensor, right: Tensor) -> Tensor:
        return next(self._objectives()).classes(left, right)

    def doubts(self) -> list[str]:
        return [doubt for each in self._objectives() for doubt in each.doubts()]

    def _added(self, losses: list[Loss]) -> Loss:
        total = Loss.of()
        for name, weight, loss in zip(self.names, self.weights, losses, strict=True):
            total = (
                total
                + Loss(loss.total, {f"{name}.{part}": value for part, value in loss.parts.items()}) * weight
            )
        return total

    def _shares(self, reps: tuple[Tensor, ...]) -> Iterator[tuple[Objective, tuple[Tensor, ...]]]:
        """Each term with the vectors of its own views."""
        first = 0
        for each, size in zip(self._objectives(), self._sizes, strict=True):
            yield each, reps[first : first + size]
            first += size

    def _objectives(self) -> Iterator[Objective]:
        return (each for each in self.terms if isinstance(each, Objective))


def without_encoder(objective: Objective) -> Objective:
    """The same objective, as part of one that holds its encoder: it uses it as before and no longer counts it among its modules, so that a state has it once."""
    encoder = objective.encoder
    del objective.encoder
    object.__setattr__(objective, "encoder", encoder)  # past nn.Module, which would make a module of it again
    return objective


def _told_apart(names: list[str]) -> list[str]:
    """Equal names get numbers, from the second on."""
    seen: Counter[str] = Counter()
    told = []
    for name in names:
        seen[name] += 1
        told.append(name if seen[name] == 1 else f"{name}{seen[name]}")
    return told
