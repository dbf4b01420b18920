"""Page of a training: its data, its metrics over the steps, and its result."""

import inspect
import math
import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from pipeline.charts.frame import minus
from pipeline.charts.training import rate
from pipeline.report.course import ends, on_same_rows
from pipeline.report.formats import signed, two_digits
from pipeline.report.page import Filters, fill
from pipeline.report.training_charts import sections
from pipeline.report.training_report import TrainingReport
from pipeline.settings.training import ObjectiveSettings

_MAX_SCORE = 1_000_000_000  # allows scores on any scale, because Spearman correlation compares ranks


def render(report: TrainingReport, warnings: Sequence[str]) -> str:
    """Render the page; all texts are escaped.

    Args:
        report: values of the page.
        warnings: see `training_warnings`.
    """
    filters: Filters = {
        "two": two_digits,
        "signed": signed,
        "rate": rate,
        "plain": lambda value: minus(f"{value:g}"),
        "options": options,
        "three": _three_digits,
        "literal": repr,
    }
    return fill(
        "training.html.j2",
        filters,
        report=report,
        comparison=comparison(report),
        sections=sections(report),
        verdict=verdict(report),
        warnings=warnings,
        ends=ends(report.lines),
        same_rows=on_same_rows(report.lines),
    )


def comparison(report: TrainingReport) -> str:
    """Return the shell command that compares the encoder with its start; empty without scored pairs."""
    dev = report.settings.dev
    if dev.uri is None or dev.measure != "spearman":
        return ""
    start = [] if report.settings.recurrent.cell else [report.encoder]
    task = {
        "kind": "sts",
        "uri": dev.uri,
        **({"columns": dev.columns} if dev.columns else {}),
        "options": {"low": -_MAX_SCORE, "high": _MAX_SCORE},
    }
    settings = {"evaluate.candidates": [*start, f"{report.uri}/encoder"], "evaluate.own": [task]}
    arguments = (
        f"{name}={yaml.safe_dump(value, default_flow_style=True, width=math.inf).strip()}"
        for name, value in settings.items()
    )
    return shlex.join(["manta", "evaluate", *arguments])


def verdict(report: TrainingReport) -> str:
    """Summarize what was trained on what data, with which result."""
    summary = (
        f"{report.objective} on {report.rows:,} rows, "
        f"{report.steps:,} steps of {report.settings.order.batch_rows} rows."
    )
    dev = report.dev
    if "before" not in dev:
        return summary if dev else summary + _without_dev(report)
    before, best = dev["before"].dev or 0.0, dev["best"].dev or 0.0
    if dev["best"].step == 0:
        return f"{summary} On dev the encoder was best before the first step: {two_digits(before)}."
    return f"{summary} On dev the encoder went from {two_digits(before)} to {two_digits(best)}."


def _without_dev(report: TrainingReport) -> str:
    """Describe how the first metric of the rows that were measured before and after changed."""
    measures = on_same_rows(report.lines)
    if not measures:
        return ""
    first = measures[0]
    return (
        f" On the same {report.same_rows:,} rows the {first.name} went from "
        f"{_three_digits(first.start)} to {_three_digits(first.end)}."
    )


def _three_digits(value: float) -> str:
    return minus(f"{value:.3g}".replace("e-0", "e-"))


def options(term: ObjectiveSettings) -> str:
    """Format the options of an objective, including defaults: temperature 0.05, head none."""
    from pipeline.objectives import OBJECTIVES  # imported here, because it loads torch

    parameters = inspect.signature(OBJECTIVES[term.name]).parameters.values()
    defaults = {
        each.name: each.default
        for each in parameters
        if each.kind is each.KEYWORD_ONLY and each.default is not each.empty and each.name not in term.options
    }
    return ", ".join(
        f"{name.replace('_', ' ')} {_value_in_words(value)}"
        for name, value in (term.options | defaults).items()
        if value is not None
    )


def _value_in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " and ".join(map(_value_in_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
