"""Matryoshka: an objective at several vector lengths, so that the first dimensions are usable alone."""

from collections.abc import Sequence

from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.objectives import Batch, Loss, Objective, Product, View
from pipeline.objectives.weighted import share_encoder


class Matryoshka(Objective):
    """Sum of an objective's loss over truncated vectors (Kusupati et al. 2022, eq. 1, with weights 1).

    Row terms count once. The product is that of the objective: truncate its vectors to use fewer dimensions.
    ConfigError if `dims` is empty, has repeated entries or exceeds the vectors' dimension.
    """

    def __init__(self, encoder: nn.Module, objective: Objective, *, dims: Sequence[int]) -> None:
        super().__init__(encoder)
        if not dims or len(set(dims)) < len(dims) or not 1 <= min(dims) <= max(dims) <= self.dim:
            raise ConfigError(
                "train.matryoshka",
                f"distinct numbers from 1 to {self.dim}, the vectors' dimension",
                f"{list(dims)}",
                "correct the list",
            )
        self.objective, self.dims = share_encoder(objective), tuple(dims)
        self.columns, self.optional = objective.columns, objective.optional
        self.min_rows = objective.min_rows
        self.has_positive_pairs = objective.has_positive_pairs
        self.has_stateful_loss = objective.has_stateful_loss

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

    def candidates(self) -> tuple[Product, ...]:
        return self.objective.candidates()

    def select(self, candidate: int) -> None:
        self.objective.select(candidate)

    def warnings(self) -> list[str]:
        return self.objective.warnings()
