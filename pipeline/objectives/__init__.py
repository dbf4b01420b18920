"""Training objectives, one per file; the registry finds them by name.

An objective returns the views of a batch to encode and the loss of their vectors. The loss is a function of
representations alone, so that a step can gather negatives from other ranks, or encode in chunks, without the
objective being aware of it. From outside, import the names below, `build.build_objective` and
`build.data_requirements`.
"""

from typing import Annotated

from pydantic import Field

from pipeline.objectives.batch import NO_PEERS, Batch, Column, NoPeers, Peers
from pipeline.objectives.objective import Loss, Objective, Product
from pipeline.objectives.view import View, ViewEncoder
from pipeline.registry import Registry

PositiveFloat = Annotated[float, Field(gt=0)]
"""Type of an option that must be above 0; checked when objectives are built from settings."""

OBJECTIVES: Registry[type[Objective]] = Registry("objective", __name__)

__all__ = [
    "NO_PEERS",
    "OBJECTIVES",
    "Batch",
    "Column",
    "Loss",
    "NoPeers",
    "Objective",
    "Peers",
    "PositiveFloat",
    "Product",
    "View",
    "ViewEncoder",
]
