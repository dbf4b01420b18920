"""Chart of token embeddings in the plane of their first two principal components."""

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from pipeline.charts.frame import HEIGHT, ChartFrame, dot, svg, ticks, x_axis, y_axis
from pipeline.charts.geometry import colour

_TICKS = 5
_RADIUS = 2  # pixels


def plane_chart(points: Sequence[tuple[str, float, float, int]], attribute: str) -> Markup:
    """Draw tokens as dots, coloured by group.

    Args:
        points: token, first and second component, and number of the group, which is that of its colour.
        attribute: property by which tokens are grouped.
    """
    xs, ys = [x for _, x, _, _ in points], [y for _, _, y, _ in points]
    frame = ChartFrame((min(xs), max(xs)), (min(ys), max(ys)))
    return svg(
        f"Token embeddings in two dimensions, coloured by {attribute}",
        x_axis(frame, ticks(*frame.x, _TICKS), "first principal component"),
        y_axis(frame, ticks(*frame.y, _TICKS)),
        *(
            dot(frame.px(x), frame.py(y), f"point {colour(group)}", _RADIUS, escape(token))
            for token, x, y, group in points
        ),
        height=HEIGHT,
    )
