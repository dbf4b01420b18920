"""In-batch contrast in several directions: base of `supervised` and `guided`."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from pipeline.losses.directions import Compared, Direction, HardnessOn, Softmax, directed_info_nce
from pipeline.objectives import Batch, Loss
from pipeline.objectives.in_batch import TwoEncoderContrast


class DirectedContrast(TwoEncoderContrast):
    """InfoNCE of anchors with positives and hard negatives, whose candidates may also be anchors."""

    directions: tuple[Direction, ...] = ("query_document",)
    """what a row is compared with"""
    softmax: Softmax = "joint"
    """one softmax over all directions, or one for each"""
    hardness: float = 0.0
    """additional weight of negatives by their similarity"""
    hardness_on: HardnessOn = "all"
    """negatives that `hardness` applies to"""

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        if self.directions == ("query_document",) and not self.hardness:
            return super().loss(reps, batch)
        return Loss.of(
            directed_info_nce=self.directed_loss(self.compared(self.projected(reps), batch), batch, {})
        )

    def directed_loss(self, compared: Compared, batch: Batch, marked: Mapping[Direction, Tensor]) -> Tensor:
        """Compute the loss without the batch's false negatives and the candidates that are marked."""
        known = batch.false_negative_mask(self.compared_role, compared.queries.device)
        excluded = dict(marked)
        if known is not None:
            for direction in self.directions:
                # the batch may have further negatives, for other objectives; these come last
                mask = known[:, : compared.candidates(direction)]
                excluded[direction] = mask | excluded.get(direction, mask)
        return directed_info_nce(
            compared,
            temperature=self.temperature,
            directions=self.directions,
            softmax=self.softmax,
            similarity=self.similarity,
            hard_negative_weight=self.hard_negative_weight,
            hardness=self.hardness,
            hardness_on=self.hardness_on,
            excluded=excluded,
        )

    def compared(self, reps: Sequence[Tensor], batch: Batch) -> Compared:
        """Gather the vectors that the directions compare.

        Args:
            reps: vectors of this rank's anchors, positives and each column of negatives.
            batch: the same rows.
        """
        gather = batch.peers.gather
        compares_queries = any(direction.endswith("query") for direction in self.directions)
        return Compared(
            reps[0],
            tuple(map(gather, reps[1:])),
            gather(reps[0]) if compares_queries else None,
            batch.offset,
        )

    def projected(self, reps: Sequence[Tensor]) -> list[Tensor]:
        """Project anchors, and positives and negatives."""
        return [self.project(reps[0]), *map(self.project_candidates, reps[1:])]
