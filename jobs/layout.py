"""Text laid out in columns by the cells that characters take on a terminal, within its width where there is
one.
"""

import os
import sys
from collections.abc import Sequence

from pipeline.log import printable

_GAP = "  "


def output_width() -> int | None:
    """Cells in a line of standard output: COLUMNS where it is set, else the terminal's; None for a pipe or a
    file, whose lines may have any length.
    """
    if (named := os.environ.get("COLUMNS", "")).isdigit() and int(named) > 0:
        return int(named)
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


def cut(text: str, width: int) -> str:
    """The text in at most `width` cells; one that is longer ends with three dots."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, width - 3)).rstrip() + "..."[:width]


def table(rows: Sequence[tuple[str, ...]], header: tuple[str, ...], most: Sequence[int] | None = None) -> str:
    """Columns in plain text, numbers to the right.

    A cell is one line, whatever characters are in it; most: cells that each column may take.
    """
    shown = [tuple(map(printable, row)) for row in (header, *rows)]
    if most is not None:
        shown = [tuple(cut(cell, width) for cell, width in zip(row, most, strict=True)) for row in shown]
    widths = [max(cells(row[column]) for row in shown) for column in range(len(header))]
    right = [all(_is_number(row[column]) for row in shown[1:]) for column in range(len(header))]
    return "\n".join(_GAP.join(map(_padded, row, widths, right)).rstrip() for row in shown)


def fitted(rows: Sequence[tuple[str, ...]], header: tuple[str, ...], width: int | None) -> str:
    """The table in lines of at most `width` cells; None for lines of any length."""
    if width is None:
        return table(rows, header)
    wanted = [max(cells(printable(row[column])) for row in (header, *rows)) for column in range(len(header))]
    return table(rows, header, shared(wanted, width - gaps(len(header))))


def shared(wanted: Sequence[int], room: int) -> list[int]:
    """Widths of columns that want that many cells and have `room` together: none gets more than it wants, and
    those that want more get equal parts of the rest.
    """
    widths, left = [0] * len(wanted), room
    for done, column in enumerate(sorted(range(len(wanted)), key=lambda column: wanted[column])):
        widths[column] = min(wanted[column], left // (len(wanted) - done))
        left -= widths[column]
    return widths


def gaps(columns: int) -> int:
    """Cells between that many columns."""
    return len(_GAP) * max(0, columns - 1)


def _padded(cell: str, width: int, right: bool) -> str:
    blanks = " " * (width - cells(cell))
    return blanks + cell if right else cell + blanks


def _is_number(cell: str) -> bool:
    return (
        not cell
        or cell.replace(",", "")
        .replace(".", "", 1)
        .replace("-", "", 1)
        .replace(" ", "")
        .rstrip("%msMGkB")
        .isdigit()
    )
