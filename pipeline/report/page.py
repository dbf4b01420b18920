"""HTML pages: templates next to this module, and number formats."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.charts import frame

Filters = Mapping[str, Callable[..., Any]]


def fill(template: str, filters: Filters, **values: Any) -> str:
    """Render a template as a complete page (UTF-8); all values except charts are escaped."""
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
        **filters,
    }
    page = environment.get_template(template).render(**values)
    return page.encode("utf-8", "replace").decode()  # file names may contain lone surrogates


def _count(number: float) -> str:
    """Format a count: 1234567 -> 1,234,567; other values below 100 with three digits."""
    if number == int(number):
        return f"{int(number):,}"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _size(number: int) -> str:
    """Format bytes as MB, GB ... (powers of 1,000)."""
    power = min((len(str(number)) - 1) // 3, 4)
    value, unit = number / 1_000**power, ("B", "kB", "MB", "GB", "TB")[power]
    return f"{value:.3g} {unit}" if value < 1_000 else f"{value:,.0f} {unit}"


def _duration(seconds: float) -> str:
    """Format seconds: 0.42 s, 12 s, 3 min 4 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s"
        if whole < 3_600
        else f"{whole // 3_600} h {whole % 3_600 // 60} min"
    )
