"""Build the sections of the evaluation page about the bias of token embeddings.

Each subject of the page has a module of its own.
"""

from collections.abc import Iterator, Sequence
from html import escape

from markupsafe import Markup

from pipeline.charts.frame import HEIGHT, ChartFrame, dot, percent, svg, ticks, x_axis, y_axis
from pipeline.charts.geometry import colour, three_digits
from pipeline.report.evaluation_report import Chart, Section
from pipeline.report.formats import two_decimals
from pipeline.report.training_charts import legend
from pipeline.stats.token_bias import NamedTokenBias, TableBias

_TICKS = 5
_RADIUS = 2  # pixels


def plane_chart(points: Sequence[tuple[str, float, float, int]], attribute: str) -> Markup:
    """Draw tokens as dots, coloured by group.

    Args:
        points: token, first and second component, and number of its group, which is also the number of its
            colour.
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


_AVERAGES_NOTE = (
    "Averages of token embeddings, without layers: Spearman x100 of their cosines with human scores. Where "
    "leaving tokens out helps, the embeddings are biased by what these tokens have in common (Jiang et al. "
    "2022, PromptBERT)."
)
_PLANE_NOTE = (
    "All tokens of the vocabulary but those that begin and end every text, on the first two principal "
    "components of the table. "
    "Between groups: the proportion of variance in this plane that the groups' means explain; near 0 is good."
)


def sections(encoders: Sequence[NamedTokenBias]) -> Iterator[Section]:
    """Yield a table of averages of all tables, then the plane of each table."""
    tables = [(f"{each.name}, {table.table} table", table) for each in encoders for table in each.bias.tables]
    rows = [
        (left_out, *(two_decimals(table.correlations[left_out]) for _, table in tables))
        for left_out in tables[0][1].correlations
    ]
    reasons = ((each.name, each.bias.missing) for each in encoders)
    missing = [f"{name}: no output table, because {reason}." for name, reason in reasons if reason]
    header = ("left out", *(name for name, _ in tables))
    yield Section("Averages of token embeddings", table=(header, *rows), notes=(_AVERAGES_NOTE, *missing))
    for each in encoders:
        for table in each.bias.tables:
            yield _plane(f"{each.name}, {table.table} table", table, each.bias.counted)


def _plane(name: str, table: TableBias, counted: str) -> Section:
    """Build the section of one table: its groups in numbers, and a chart for each attribute."""
    attributes = list(table.between)
    rows = [
        (
            f"{group.attribute}: {group.name}",
            f"{group.tokens:,}",
            three_digits(group.x),
            three_digits(group.y),
            three_digits(group.norm),
        )
        for group in table.groups
    ]
    charts = []
    for number, attribute in enumerate(attributes):
        groups = {group.code: group.name for group in table.groups if group.attribute == attribute}
        series = {code: index for index, code in enumerate(groups)}
        points = [(token.token, token.x, token.y, series[token.codes[number]]) for token in table.shown]
        heading = f"{attribute.capitalize()}: {percent(table.between[attribute])} between groups"
        charts.append(Chart(heading, plane_chart(points, attribute), key=legend(list(groups.values()))))
    first, second = table.explained
    return Section(
        f"Token embeddings in two dimensions: {name}",
        charts=tuple(charts),
        table=(("tokens", "number", "first component", "second", "mean norm"), *rows),
        notes=(
            _PLANE_NOTE,
            f"The components explain {percent(first)} and {percent(second)} of the variance. The charts show "
            f"{len(table.shown):,} tokens, evenly over the ranks. Counts are of {counted}. All tokens: "
            f"evaluations/{table.points.path}.",
        ),
    )
