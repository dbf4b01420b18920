"""Matryoshka: an objective at several vector lengths, so that the first dimensions are usable alone."""

from collections.abc import Sequence

from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.objectives import Batch, Loss, Objective
from pipeline.objectives.weighted import Composite


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

    @property
    def inner(self) -> list[Objective]:
        return [self.objective]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        losses = (self.objective.loss(self.objective.truncate(reps, dim), batch) for dim in self.dims)
        return sum(losses, Loss.of())

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        return self.objective.row_terms(outputs, batch)
