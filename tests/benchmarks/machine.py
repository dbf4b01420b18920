"""Describe the machine of a benchmark, and print its results."""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path


def machine() -> str:
    """Return the CPU, the number of cores and the load of the last minute.

    Family and model distinguish generations of one name: an AMD EPYC of family 25 is a Zen 3 or Zen 4, one of
    family 26 a Zen 5.
    """
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    values = {key.strip(): value.strip() for key, _, value in lines}
    name = values.get("model name", "unknown CPU")
    number = f"family {values.get('cpu family', '?')}, model {values.get('model', '?')}"
    return f"{name} ({number}), {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}"


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
