"""Draw rows as points on a plane, coloured by a column. Charts know nothing of the page that shows them."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from markupsafe import Markup, escape

from pipeline.charts.frame import shorten, svg

_WIDTH, _HEIGHT, _MARGIN = 888, 620, 12
_MAX_COLOURS = 8  # more cannot be distinguished
_RANGES = 6  # ranges of a column of numbers
_MAX_LABEL = 40  # characters


class PlanePoint(NamedTuple):
    """A row on the plane."""

    x: float
    """position from left to right"""
    y: float
    """position from bottom to top"""
    id: str
    """id of the row; the point links to the rows near it"""
    title: str
    """text that is shown when the pointer is over the point"""
    group: int
    """number of its colour"""


def plane_chart(points: Sequence[PlanePoint]) -> Markup:
    """Draw points, each as a link to the rows near it."""
    left, right = _bounds([point.x for point in points])
    bottom, top = _bounds([point.y for point in points])
    dots = []
    for point in points:
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * (point.x - left) / (right - left)
        y = _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (point.y - bottom) / (top - bottom)
        dots.append(
            f'<a href="/?near={quote(point.id, safe="")}"><circle class="point g{point.group}" cx="{x:.1f}" '
            f'cy="{y:.1f}" r="4"><title>{escape(point.title)}</title></circle></a>'
        )
    return svg("A sample of the rows on a plane", *dots, width=_WIDTH, height=_HEIGHT)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if high > low else (low - 1, low + 1)


def group_numbers(values: Sequence[Any]) -> tuple[list[int], list[str]]:
    """Give each value a colour: by frequency, or many different numbers by ranges with equally many rows.

    The most frequent values have colours of their own, and the rest share the last colour.

    Returns:
        The index of each value's colour, and the label of each colour.
    """
    known = [value for value in values if value is not None]
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
    if is_number and len({value for value in known if math.isfinite(value)}) > _MAX_COLOURS:
        return _ranges(np.array([np.nan if value is None else value for value in values], dtype=np.float64))
    labels = [
        "none" if value is None else shorten(" ".join(str(value).split()), _MAX_LABEL) for value in values
    ]
    ordered = [label for label, _ in Counter(sorted(labels)).most_common()]
    own, others = ordered[: _MAX_COLOURS - 1], ordered[_MAX_COLOURS - 1 :]
    number_of = {label: number for number, label in enumerate(own)}
    rest = others if len(others) < 2 else [f"{len(others):,} others"]
    return [number_of.get(label, len(own)) for label in labels], [*own, *rest]


def _ranges(values: np.ndarray) -> tuple[list[int], list[str]]:
    """Give values (n,) colours by range, one more for values that are not finite; see `group_numbers`."""
    is_finite = np.isfinite(values)
    finite = values[is_finite]
    bounds = np.unique(np.quantile(finite, np.linspace(0, 1, _RANGES + 1)))
    if len(bounds) < _RANGES + 1:  # many values are equal
        bounds = np.linspace(finite.min(), finite.max(), _RANGES + 1)
    numbers = np.clip(np.searchsorted(bounds, values, side="right") - 1, 0, _RANGES - 1)
    labels = [f"{low:,.6g} to {high:,.6g}" for low, high in pairwise(bounds)]
    if is_finite.all():
        return numbers.tolist(), labels
    return np.where(is_finite, numbers, _RANGES).tolist(), [*labels, "none"]
