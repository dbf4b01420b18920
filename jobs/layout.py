"""Lay out tables in plain text. Widths are terminal cells: some characters take two of them, some none."""

import os
import re
import sys
from collections.abc import Sequence

from pipeline.log import printable

_GAP = "  "  # between columns
_NUMBER = re.compile(r"-?[\d,]+(\.\d+)? ?(%|m?s|[kMGT]?B?)")  # with its unit: 4.7 MB, 12 ms, 98 %


def output_width() -> int | None:
    """Return the width of standard output: COLUMNS if it is set, else the terminal's width.

    None for a pipe or a file, whose lines may have any length.
    """
    if (columns := os.environ.get("COLUMNS", "")).isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):  # no terminal, or a stream without a file descriptor
        return None


def cells(text: str) -> int:
    """Count the terminal cells that the text takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def truncate(text: str, width: int) -> str:
    """Shorten a text to at most `width` cells, with three dots at the end."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, width - 3)).rstrip() + "..."[:width]


def table(
    rows: Sequence[tuple[str, ...]], header: tuple[str, ...], max_widths: Sequence[int] | None = None
) -> str:
    """Format rows as a table with a header. Columns of numbers are aligned to the right.

    Args:
        max_widths: width to which each column is truncated; None for no limit.
    """
    lines = [tuple(map(printable, row)) for row in (header, *rows)]
    if max_widths is not None:
        lines = [tuple(map(truncate, line, max_widths)) for line in lines]
    widths = wanted_widths(lines[1:], lines[0])
    align_right = [True] * len(header)
    if rows:
        align_right = [all(map(_is_number, column)) for column in zip(*lines[1:], strict=True)]
    return "\n".join(_GAP.join(map(_pad, line, widths, align_right)).rstrip() for line in lines)


def table_within(rows: Sequence[tuple[str, ...]], header: tuple[str, ...], width: int | None) -> str:
    """Format rows as a table with lines of at most `width` cells; None for no limit."""
    if width is None:
        return table(rows, header)
    return table(rows, header, divide_width(wanted_widths(rows, header), width - gaps(len(header))))


def wanted_widths(rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> list[int]:
    """Return the width that each column needs to show all of its texts."""
    columns = zip(header, *rows, strict=True)
    return [max(cells(printable(text)) for text in column) for column in columns]


def divide_width(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room` cells among columns.

    A column gets the width that it wants, or an equal part of the cells that narrower columns leave over.

    Args:
        wanted: width that each column wants.
    """
    widths, rest = [0] * len(wanted), room
    narrowest_first = sorted(range(len(wanted)), key=lambda column: wanted[column])
    for done, column in enumerate(narrowest_first):
        widths[column] = min(wanted[column], rest // (len(wanted) - done))
        rest -= widths[column]
    return widths


def gaps(columns: int) -> int:
    """Return the number of cells that the gaps of a table with `columns` columns take."""
    return len(_GAP) * max(0, columns - 1)


def _pad(cell: str, width: int, right: bool) -> str:
    blanks = " " * (width - cells(cell))
    return blanks + cell if right else cell + blanks


def _is_number(cell: str) -> bool:
    return not cell or _NUMBER.fullmatch(cell) is not None
