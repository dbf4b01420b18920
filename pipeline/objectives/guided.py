"""Guided in-batch negatives (GISTEmbed, Solatorio 2024): a second encoder finds false negatives."""

from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import JsonValue, NonNegativeFloat
from torch import Tensor, nn

from pipeline.losses.directions import Direction, check_directions
from pipeline.losses.guided import MarginOf, guided_exclusions
from pipeline.objectives import OBJECTIVES, Batch, Loss, PositiveFloat, Roles, View
from pipeline.objectives.directed import DirectedContrast
from pipeline.objectives.fixed_encoder import FixedEncoder
from pipeline.settings.training import NEGATIVES

_DIRECTIONS: tuple[Direction, ...] = ("query_document", "query_query", "positive_positive")


@OBJECTIVES.register("guided")
class Guided(DirectedContrast):
    """InfoNCE of anchors, positives and hard negatives, without the negatives that a guide finds similar.

    `guide` is an encoder folder, used without dropout and with its own tokenizer; it is not trained or saved,
    and its vectors may have another dimension. A candidate is left out unless its cosine by the guide is
    below that of the row's anchor with its positive, minus a margin. `margin_of` "absolute" subtracts
    `margin`; "relative" subtracts `margin` times the positive's cosine, so that 0.05 keeps negatives up to
    95 % of it. `directions` are those of `supervised`, with one softmax; by default anchors with all
    positives and negatives, with other anchors, and positives with other positives, as in the paper.
    `temperature` divides the cosines. Without a guide use `supervised`; to leave out equal texts alone,
    `train.order.repeats: mask` is enough.
    """

    columns = ("anchor", "positive")
    optional = NEGATIVES

    def __init__(
        self,
        encoder: nn.Module,
        *,
        guide: str,
        temperature: PositiveFloat = 0.01,
        margin: NonNegativeFloat = 0.0,
        margin_of: MarginOf = "absolute",
        directions: tuple[Direction, ...] = _DIRECTIONS,
    ) -> None:
        super().__init__(encoder, head="none", keep_head=False, second="same")
        self.roles({"directions": list(directions)})
        self.guide, self.temperature = FixedEncoder(guide), temperature
        self.margin, self.margin_of, self.directions = margin, margin_of, directions

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> Roles:
        """Return the roles; raise ConfigError for directions that do not fit each other."""
        check_directions(cast(Sequence[Direction], options.get("directions", _DIRECTIONS)), "joint")
        return super().roles(options)

    def views(self, batch: Batch) -> Sequence[View]:
        roles = [role for role in (*self.columns, *self.optional) if role in batch]
        return [*super().views(batch), *self.guide.views(batch, roles, self.encoder)]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        trained, guiding = _halves(reps)
        marked = guided_exclusions(
            self.compared(guiding, batch), self.directions, margin=self.margin, margin_of=self.margin_of
        )
        return Loss.of(guided_info_nce=self.directed_loss(self.compared(trained, batch), batch, marked))

    def truncate(self, reps: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        """Truncate the vectors of the trained encoder, not those of the guide."""
        trained, guiding = _halves(reps)
        return (*super().truncate(trained, dim), *guiding)


def _halves(reps: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the vectors of the trained encoder, and those of the guide."""
    return reps[: len(reps) // 2], reps[len(reps) // 2 :]
