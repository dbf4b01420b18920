"""Render HTML pages from the Jinja templates next to this module, with filters that format numbers."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.charts import frame

if TYPE_CHECKING:
    import jinja2

Filters = Mapping[str, Callable[..., Any]]


def render_template(template: str, filters: Filters, **values: Any) -> str:
    """Render a template as a complete HTML page. All values are escaped, except charts, which are Markup.

    Args:
        filters: functions that the template uses, by name, besides count, size, duration and percent.
        values: variables of the template.
    """
    environment = _environment(template)
    environment.filters |= filters
    page = environment.get_template(template).render(**values)
    return page.encode("utf-8", "replace").decode()  # file names may contain lone surrogates


@cache
def _environment(template: str) -> "jinja2.Environment":
    """Return the environment of a template, which keeps the compiled template.

    Compiling takes longer than rendering.
    """
    import jinja2  # imported here, because most commands write no page

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "count": _count,
        "size": _size,
        "duration": _duration,
        "percent": frame.percent,
    }
    return environment


def _count(number: float) -> str:
    """Format a count: 1234567 -> 1,234,567. Fractions below 100 get three significant digits."""
    if number == int(number):
        return f"{int(number):,}"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _size(number: int) -> str:
    """Format a number of bytes: 1234567 -> 1.23 MB (powers of 1,000)."""
    power = min((len(str(number)) - 1) // 3, 4)
    value, unit = number / 1_000**power, ("B", "kB", "MB", "GB", "TB")[power]
    return f"{value:.3g} {unit}" if value < 1_000 else f"{value:,.0f} {unit}"


def _duration(seconds: float) -> str:
    """Format seconds: 0.42 s, 12 s, 3 min 4 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds:.2f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest_s} s"
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    return f"{minutes // 60} h {minutes % 60} min"
