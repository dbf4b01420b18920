"""Describe the machine of a benchmark, and print its results."""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path


def machine() -> str:
    """Return the CPU, the number of cores and the load of the last minute."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else 'unknown CPU'}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}"


def spread(values: Sequence[float], spec: str = ".2f") -> str:
    """Format values as "median (smallest to largest)". spec: format of each of the three."""
    return f"{statistics.median(values):{spec}} ({min(values):{spec}} to {max(values):{spec}})"


def print_table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    """Print a Markdown table below its title."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"

    print(f"\n{title}\n\n{line(header)}\n|{'|'.join('-' * (width + 2) for width in widths)}|")
    for row in rows:
        print(line(row))
