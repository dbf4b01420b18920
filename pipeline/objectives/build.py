"""From settings to objectives: options checked against what an objective takes, losses added up, vectors truncated."""

import inspect
from functools import cache
from typing import Any, Literal

from pydantic import create_model
from torch import nn

from pipeline.config import Settings, validated
from pipeline.errors import ConfigError
from pipeline.objectives import OBJECTIVES, Objective
from pipeline.objectives.matryoshka import Matryoshka
from pipeline.objectives.weighted import Sum, Term
from pipeline.settings.training import TrainSettings

Order = Literal["shuffled", "contiguous"]


def build_objective(settings: TrainSettings, encoder: nn.Module) -> Objective:
    """The objective of `settings`, around `encoder`: one, or a weighted sum, with the loss at several lengths of the vectors where there are any.

    New weights come from torch's generator. ConfigError, with the place in the settings, for an unknown objective, for options that it does not take, and for lengths
    of vectors that it cannot cut.
    """
    terms = [
        Term(one.name, one.weight, _built(settings, place, encoder))
        for place, one in enumerate(settings.objective)
    ]
    return terms[0].objective if len(terms) == 1 and terms[0].weight == 1 else Sum(encoder, terms)


def roles_of(settings: TrainSettings) -> tuple[tuple[str, ...], tuple[str, ...], Order]:
    """(roles that have to be in the data, roles that are read where they are there, order of the rows), of all objectives together; builds none.

    ConfigError as of `build_objective`.
    """
    columns: list[str] = []
    optional: list[str] = []
    order: Order = "shuffled"
    for place, one in enumerate(settings.objective):
        kind = OBJECTIVES[one.name]
        needed, welcome = kind.roles(_options(settings, place))
        columns, optional = [*columns, *needed], [*optional, *welcome]
        order = (
            "contiguous" if kind.order == "contiguous" else order
        )  # neighbours are rows like others to those that do not need them
    return (
        tuple(dict.fromkeys(columns)),
        tuple(role for role in dict.fromkeys(optional) if role not in columns),
        order,
    )


def _built(settings: TrainSettings, place: int, encoder: nn.Module) -> Objective:
    one = settings.objective[place]
    objective = OBJECTIVES[one.name](encoder, **_options(settings, place))
    if not settings.matryoshka:
        return objective
    if not objective.truncates:
        found = f"{one.name} with a layer or a queue of their full width"
        raise ConfigError(
            "train.matryoshka",
            "objectives that compare the vectors themselves",
            found,
            "set its head to none if it has one, or leave it out",
        )
    return Matryoshka(encoder, objective, dims=settings.matryoshka)


def _options(settings: TrainSettings, place: int) -> dict[str, Any]:
    """All options of one of the objectives with their values, as its class takes them."""
    one = settings.objective[place]
    where = f"train.objective[{place}].options of {one.name}"
    checked = validated(_model(one.name), one.options, where)
    options = {name: getattr(checked, name) for name in type(checked).model_fields}
    _check_classes(settings, where, options.get("classes"))
    return options


def _check_classes(settings: TrainSettings, where: str, classes: int | None) -> None:
    """Whatever label a row may have has to be one of the classes, where there are any."""
    for source in settings.data:
        labels = source.values.labels
        if classes is not None and len(labels) > classes:
            remedy = f"raise it, or name the labels of the file in `values` (now {', '.join(labels)})"
            raise ConfigError(
                f"{where}: classes",
                f"at least {len(labels)}, one for each label of {source.uri}",
                f"{classes}",
                remedy,
            )


@cache
def _model(name: str) -> type[Settings]:
    """The keyword arguments of an objective as a section of settings."""
    parameters = inspect.signature(OBJECTIVES[name], eval_str=True).parameters.values()
    keywords = [each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    fields: dict[str, Any] = {
        each.name: (each.annotation, ... if each.default is inspect.Parameter.empty else each.default)
        for each in keywords
    }
    return create_model(f"Options of {name}", __base__=Settings, **fields)
