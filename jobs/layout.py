"""Tables in plain text, laid out by the cells that characters take on a terminal."""

import os
import sys
from collections.abc import Sequence

from pipeline.log import printable

_GAP = "  "


def output_width() -> int | None:
    """Return the cells in a line of standard output: COLUMNS if it is set, else those of the terminal.

    Returns None for a pipe or a file, whose lines may have any length.
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
    """Return the text in at most `width` cells. Longer texts are cut and end with three dots."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, width - 3)).rstrip() + "..."[:width]


def table(rows: Sequence[tuple[str, ...]], header: tuple[str, ...], most: Sequence[int] | None = None) -> str:
    """Return the rows below their header. Columns of numbers are aligned to the right.

    Args:
        most: cells that each column may take; None for columns of any width.
    """
    shown = [tuple(map(printable, row)) for row in (header, *rows)]
    if most is not None:
        shown = [tuple(map(cut, row, most)) for row in shown]
    widths = wanted_widths(shown[1:], shown[0])
    right = [all(map(_is_number, column)) for column in zip(*shown[1:], strict=True)] or [True] * len(header)
    return "\n".join(_GAP.join(map(_padded, row, widths, right)).rstrip() for row in shown)


def fitted(rows: Sequence[tuple[str, ...]], header: tuple[str, ...], width: int | None) -> str:
    """Return the table in lines of at most `width` cells, or of any length for None."""
    if width is None:
        return table(rows, header)
    return table(rows, header, shared(wanted_widths(rows, header), width - gaps(len(header))))


def wanted_widths(rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> list[int]:
    """Return the cells that each column needs to show all of its texts."""
    columns = zip(header, *rows, strict=True)
    return [max(cells(printable(text)) for text in column) for column in columns]


def shared(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room` cells among columns that want that many cells each.

    No column gets more than it wants. Columns that want more than their part get equal parts of the rest.
    """
    widths, left = [0] * len(wanted), room
    for done, column in enumerate(sorted(range(len(wanted)), key=lambda column: wanted[column])):
        widths[column] = min(wanted[column], left // (len(wanted) - done))
        left -= widths[column]
    return widths


def gaps(columns: int) -> int:
    """Return the number of cells between that many columns."""
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
