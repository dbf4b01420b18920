"""An objective at several lengths of the vectors, so that their first dimensions serve alone (Kusupati et al. 2022)."""

from collections.abc import Sequence

from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.objectives import Batch, Loss, Objective, Product, View
from pipeline.objectives.weighted import without_encoder


class Matryoshka(Objective):
    """The loss of `objective` summed over the vectors' first `dim` dimensions, for each of dims (equation 1 there, weights 1). What rows cost by themselves counts once.

    ConfigError for dims that are doubled or that the vectors lack. The product is that of the objective: shorter vectors are its vectors' beginnings.
    """

    def __init__(self, encoder: nn.Module, objective: Objective, *, dims: Sequence[int]) -> None:
        super().__init__(encoder)
        if not dims or len(set(dims)) < len(dims) or not 1 <= min(dims) <= max(dims) <= self.dim:
            raise ConfigError(
                "train.matryoshka",
                f"different numbers from 1 to {self.dim}, the vectors' dimension",
                f"{list(dims)}",
                "correct the list",
            )
        self.objective, self.dims = without_encoder(objective), tuple(dims)
        self.columns, self.optional, self.least_rows = (
            objective.columns,
            objective.optional,
            objective.least_rows,
        )
        self.positives, self.remembers = objective.positives, objective.remembers

    def views(self, batch: Batch) -> Sequence[View]:
        return self.objective.views(batch)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        total = Loss.of()
        for dim in self.dims:
            total = total + self.objective.loss(self.objective.truncated(reps, dim), batch)
        return total

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        return self.objective.row_terms(outputs, batch)

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        self.objective.after_step(reps, batch)

    def product(self) -> Product:
        return self.objective.product()

    def rivals(self) -> tuple[Product, ...]:
        return self.objective.rivals()

    def choose(self, place: int) -> None:
        self.objective.choose(place)

    def doubts(self) -> list[str]:
        return self.objective.doubts()
