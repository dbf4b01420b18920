"""Training objectives such as SimCSE, one per file, registered by name.

An objective returns the views of a batch to encode, and computes the loss of their vectors. The loss is a
function of the vectors alone, so that the objective stays the same whether the training step gathers vectors
of other ranks or encodes in chunks. Other packages import the names below, `build.build_objective` and
`build.data_requirements`.
"""

from typing import Annotated

from pydantic import Field

from pipeline.objectives.batch import NO_PEERS, Batch, Column, NoPeers, Peers
from pipeline.objectives.objective import (
    AddsRowTerms,
    ClassifiesPairs,
    KeepsState,
    Loss,
    MasksWords,
    Objective,
    OffersCandidates,
    PredictsRows,
    Roles,
    TrainedModel,
)
from pipeline.objectives.view import View, ViewEncoder
from pipeline.registry import Registry

PositiveFloat = Annotated[float, Field(gt=0)]
"""type of an option that must be above 0; checked when objectives are built from settings"""

OBJECTIVES: Registry[type[Objective]] = Registry("objective", __name__)

__all__ = [
    "NO_PEERS",
    "OBJECTIVES",
    "AddsRowTerms",
    "Batch",
    "ClassifiesPairs",
    "Column",
    "KeepsState",
    "Loss",
    "MasksWords",
    "NoPeers",
    "Objective",
    "OffersCandidates",
    "Peers",
    "PositiveFloat",
    "PredictsRows",
    "Roles",
    "TrainedModel",
    "View",
    "ViewEncoder",
]
