"""Render the page of a training: its data, its metrics over the steps, and its result."""

import inspect
import math
import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from pipeline.charts.frame import minus
from pipeline.charts.training import rate
from pipeline.log import counted
from pipeline.report.formats import signed, two_decimals
from pipeline.report.loss_curve import changes_on_same_rows, changes_over_steps
from pipeline.report.page import Filters, render_template
from pipeline.report.training_charts import sections
from pipeline.report.training_report import TrainingReport
from pipeline.settings.training import ObjectiveSettings

_MAX_SCORE = 1_000_000_000  # dev scores may have any scale, because Spearman correlation compares ranks


def render(report: TrainingReport, warnings: Sequence[str]) -> str:
    """Render the page; all texts are escaped.

    Args:
        report: values of the page.
        warnings: see `training_warnings`.
    """
    filters: Filters = {
        "two": two_decimals,
        "signed": signed,
        "rate": rate,
        "plain": lambda value: minus(f"{value:g}"),
        "options": format_options,
        "three": _three_digits,
        "literal": repr,
    }
    return render_template(
        "training.html.j2",
        filters,
        report=report,
        comparison=comparison(report),
        sections=sections(report),
        verdict=verdict(report),
        warnings=warnings,
        ends=changes_over_steps(report.lines),
        same_rows=changes_on_same_rows(report.lines),
    )


def comparison(report: TrainingReport) -> str:
    """Return the shell command that evaluates the encoder before and after the training on dev.

    Returns an empty text if dev has no scored pairs, or measures predictions of the objective.
    """
    dev = report.settings.dev
    if dev.uri is None or dev.measure != "spearman" or report.predicts:
        return ""
    start = [] if report.settings.new_encoder else [report.encoder]
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
    """Summarize the result, the objective and the training data."""
    summary = (
        f"Trained with {report.objective} on {counted(report.rows, 'row')}, in "
        f"{counted(report.steps, 'step')} of {counted(report.settings.order.batch_rows, 'row')}."
    )
    lines = report.dev_lines
    if lines is None:
        return _same_rows_sentence(report) + summary
    if lines.before is None:
        return summary
    before, best = lines.before.dev or 0.0, lines.best.dev or 0.0
    if lines.best.step == 0:
        return f"On dev the encoder was best before the first step: {two_decimals(before)}. {summary}"
    return f"On dev the encoder went from {two_decimals(before)} to {two_decimals(best)}. {summary}"


def _same_rows_sentence(report: TrainingReport) -> str:
    """Describe how the loss changed on the rows that were measured before and after; empty if none were."""
    changes = changes_on_same_rows(report.lines)
    if not changes:
        return ""
    first = changes[0]
    return (
        f"On the same {counted(report.same_rows, 'row')}, the {first.name} went from "
        f"{_three_digits(first.start)} before the first step to {_three_digits(first.end)} after the last. "
    )


def _three_digits(value: float) -> str:
    return minus(f"{value:.3g}".replace("e-0", "e-"))


def format_options(term: ObjectiveSettings) -> str:
    """Format the options of an objective, including defaults: temperature 0.05, head none."""
    from pipeline.objectives import OBJECTIVES  # imported here, because it loads torch

    parameters = inspect.signature(OBJECTIVES[term.name]).parameters.values()
    defaults = {
        option.name: option.default
        for option in parameters
        if option.kind is option.KEYWORD_ONLY
        and option.default is not option.empty
        and option.name not in term.options
    }
    return ", ".join(
        f"{name.replace('_', ' ')} {_format_value(value)}"
        for name, value in (term.options | defaults).items()
        if value is not None
    )


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " and ".join(map(_format_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
