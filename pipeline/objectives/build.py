"""Build objectives from settings: check options, add up losses, truncate vectors."""

import inspect
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import create_model
from torch import nn

from pipeline.config import Settings, validated
from pipeline.errors import ConfigError
from pipeline.objectives import OBJECTIVES, Objective
from pipeline.objectives.matryoshka import Matryoshka
from pipeline.objectives.weighted import Sum, Term, merged_roles
from pipeline.settings.training import TrainSettings

Order = Literal["shuffled", "contiguous"]


class DataRequirements(NamedTuple):
    """Columns and order of rows that all objectives of a training need.

    Attributes:
        columns: roles that the data must have.
        optional: roles that are used if they exist.
        order: order of the rows.
    """

    columns: tuple[str, ...]
    optional: tuple[str, ...]
    order: Order


def build_objective(settings: TrainSettings, encoder: nn.Module) -> Objective:
    """Build the objective in `settings` around an encoder.

    Returns one objective or a weighted sum, at several lengths of the vectors if `train.matryoshka` lists
    any. New weights are drawn from torch's generator.

    Raises:
        ConfigError: an unknown objective, invalid options, or lengths that the objective does not allow. The
            message names the position in the settings.
    """
    terms = [
        Term(term.name, term.weight, _build(settings, number, encoder))
        for number, term in enumerate(settings.objective)
    ]
    return terms[0].objective if len(terms) == 1 and terms[0].weight == 1 else Sum(encoder, terms)


def data_requirements(settings: TrainSettings) -> DataRequirements:
    """Return the columns and the order of rows that `settings` need, without building an objective.

    Raises:
        ConfigError: as in `build_objective`.
    """
    kinds = [OBJECTIVES[term.name] for term in settings.objective]
    roles = [kind.roles(_options(settings, number)) for number, kind in enumerate(kinds)]
    # Objectives that do not need neighbours can use contiguous rows too.
    order: Order = "contiguous" if any(kind.order == "contiguous" for kind in kinds) else "shuffled"
    return DataRequirements(*merged_roles(roles), order)


def _build(settings: TrainSettings, number: int, encoder: nn.Module) -> Objective:
    term = settings.objective[number]
    objective = OBJECTIVES[term.name](encoder, **_options(settings, number))
    if not settings.matryoshka:
        return objective
    if not objective.allows_truncation:
        raise ConfigError(
            "train.matryoshka",
            "objectives whose vectors can be truncated",
            f"{term.name}, which has a layer or a queue of the full dimension",
            "set its head to none if it has one, or leave train.matryoshka out",
        )
    return Matryoshka(encoder, objective, dims=settings.matryoshka)


def _options(settings: TrainSettings, number: int) -> dict[str, Any]:
    """Return all options of one objective, including defaults.

    Raises:
        ConfigError: an invalid option, or fewer classes than a data file has labels.
    """
    term = settings.objective[number]
    where = f"train.objective[{number}].options of {term.name}"
    checked = validated(_options_model(term.name), term.options, where)
    options = {name: getattr(checked, name) for name in type(checked).model_fields}
    for source in settings.data:
        labels = source.values.labels
        if len(labels) > options.get("classes", len(labels)):
            raise ConfigError(
                f"{where}: classes",
                f"at least {len(labels)}, one per label of {source.uri}",
                f"{options['classes']}",
                f"raise classes, or list the labels of the file in `values` (now {', '.join(labels)})",
            )
    return options


@cache
def _options_model(name: str) -> type[Settings]:
    """Return a pydantic model of the keyword arguments of an objective."""
    fields: dict[str, Any] = {
        each.name: (each.annotation, ... if each.default is each.empty else each.default)
        for each in inspect.signature(OBJECTIVES[name], eval_str=True).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    }
    return create_model(f"Options of {name}", __base__=Settings, **fields)
