"""False negatives by a guide, a second encoder: candidates that it finds as similar as the positive."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from pipeline.losses.directions import Compared, Direction

MarginOf = Literal["absolute", "relative"]
# A text that equals the positive has the same cosine up to rounding, which depends on the chunk it is in. It
# means the same, so it must be marked in every case.
_TIE = 1e-5


def guided_exclusions(
    guide: Compared, directions: Sequence[Direction], *, margin: float, margin_of: MarginOf
) -> dict[Direction, Tensor]:
    """Mark the candidates whose cosine by the guide is above the positive's cosine, or equal up to rounding.

    Sources: GISTEmbed, Solatorio 2024; the margins are those of NV-Retriever, Moreira et al. 2024.

    Args:
        guide: vectors of the guide, of the same texts as those that are trained.
        directions: the directions to mark.
        margin: how much lower than the positive's the cosine of a negative has to be.
        margin_of: "absolute": below cosine(positive) - margin; "relative": below
            cosine(positive) - margin * |cosine(positive)|.

    Returns:
        (Q, K) bool by direction, for `directed_info_nce`, which keeps the positive.

    >>> import torch
    >>> queries, positives = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> guide = Compared(queries, (positives,))
    >>> marked = guided_exclusions(guide, ["query_document"], margin=0.4, margin_of="absolute")
    >>> marked["query_document"].tolist()  # cosines 0.71 and 0, 0.71 and 1; limits 0.31 and 0.6
    [[True, False], [True, True]]
    """
    found = {direction: guide.similarities(direction, "cosine") for direction in directions}
    is_positive = guide.own("query_document")
    is_positive[:, guide.rows :] = False
    positive = guide.similarities("query_document", "cosine")[is_positive]
    limits = positive - margin * (positive.abs() if margin_of == "relative" else 1.0)
    limits = limits - _TIE
    return {direction: cosines > limits[:, None] for direction, cosines in found.items()}
