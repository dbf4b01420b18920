"""What every benchmark says about where it ran, and how it prints."""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path


def machine() -> str:
    """CPU, cores and the load of the last minute."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else 'unknown CPU'}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}"


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """median (least to most)."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def print_table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    """A Markdown table."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"

    print(f"\n{title}\n\n{line(header)}\n|{'|'.join('-' * (width + 2) for width in widths)}|")
    for row in rows:
        print(line(row))
