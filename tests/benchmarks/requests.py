"""Measure the requests of a night to an object store, by stage: number, bytes, longest sequential chain.

python -m tests.benchmarks.requests --rows 100000 1000000

The root is on a server that speaks S3, behind a proxy that answers every request after 25 milliseconds. A
chain is a sequence of requests in which each begins after the previous one has ended: its length times the
latency is the least time that the stage can take with as many workers as this machine has. A worker encodes
one unit after the other, so the chain of encoding is at most that of one unit, times the units of one worker;
both are printed, with the largest number of units that were in work at the same time. With several sizes, the
exponent b of the fit `requests ~ rows^b` is printed, too.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests.benchmarks.growth import environment, exponent, write_corpus, write_words
from tests.benchmarks.machine import machine, print_table
from tests.faults import Faults, FaultyProxy, Request
from tests.server import s3_server

_LATENCY_S = 0.025
_UNIT = re.compile(r"/([0-9a-f]{24})[-./]")  # in the names of all files of a unit
_ENCODING = "encode"  # the stage whose requests are counted for each unit


def stages_of_night(arguments: Sequence[str], log: list[Request]) -> dict[str, list[Request]]:
    """Run one `manta nightly` and return its requests by stage."""
    command = [sys.executable, "-m", "jobs.nightly", "--json", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
    )
    starts, lines = [(time.monotonic(), "start")], list[str]()
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        event = json.loads(line)["event"] if line.startswith("{") else ""
        name, found, rest = event.partition(": ")
        if found and rest.startswith("starts"):
            starts.append((time.monotonic(), name))
    if process.wait():
        sys.exit("".join(lines[-20:]))
    stages = defaultdict(list)
    for request in log:
        stages[max(start for start in starts if start[0] <= request.began_s or start is starts[0])[1]].append(
            request
        )
    return stages


def chain(requests: Iterable[Request]) -> int:
    """Return the length of the longest sequential chain: the most requests that do not overlap."""
    length, ended_s = 0, float("-inf")
    for request in sorted(requests, key=lambda each: each.ended_s):
        if request.began_s >= ended_s:
            length, ended_s = length + 1, request.ended_s
    return length


def requests_by_unit(requests: Iterable[Request]) -> list[list[Request]]:
    """Return the requests for the files of each unit."""
    units = defaultdict(list)
    for request in requests:
        if found := _UNIT.search(unquote(request.path)):
            units[found[1]].append(request)
    return list(units.values())


def most_at_once(units: Sequence[Sequence[Request]]) -> int:
    """Return the largest number of units between whose first and last request there is a common moment."""
    changes = [(min(each.began_s for each in unit), 1) for unit in units]
    changes += [(max(each.ended_s for each in unit), -1) for unit in units]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def units_note(requests: Iterable[Request]) -> str:
    """Return the longest chain of a unit, the number of units, and how many were in work at once."""
    units = requests_by_unit(requests)
    longest = max(map(chain, units), default=0)
    return f"{longest} a unit, {len(units)} units, {most_at_once(units)} at once"


def kind_of(request: Request) -> str:
    """Return the kind of a request, such as `GET units/vectors`."""
    url = urlsplit(request.path)
    names = parse_qs(url.query)
    key = unquote(url.path if len(url.path.split("/")) > 2 else names.get("prefix", [""])[0])
    method = "LIST" if "list-type" in names else request.method
    return f"{method} {'/'.join([part for part in key.split('/') if part and 'bench' not in part][:2])}"


def main(sizes: Sequence[int], again: int) -> None:
    """Print the requests of the first night of each size, and of the night after it with changed files."""
    first_nights = []
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="manta-bench-") as top, s3_server("bench") as (uri, endpoint):
            write_words(Path(top, "words.vec"))
            write_corpus(Path(top, "corpus"), rows)
            with FaultyProxy(endpoint, Faults(delayed=1.0, delay_s=_LATENCY_S)) as proxy:
                proxy.log = []
                arguments = [
                    f"corpus.uri={top}/corpus",
                    f"encoder.path={top}/words.vec",
                    f"release.root={uri}/root",
                    "gates.recall_at_10=0.5",
                ]
                os.environ["AWS_ENDPOINT_URL"] = proxy.url
                first_nights.append(stages_of_night(arguments, proxy.log))
                _print(f"{rows:,} rows, first night", first_nights[-1])
                for number in range(again):
                    proxy.log = []
                    write_corpus(Path(top, "corpus"), rows, nights=number + 1)
                    title = f"{rows:,} rows, 1 % of them changed"
                    _print(title, stages_of_night(arguments, proxy.log))
    if len(sizes) > 1:
        _print_exponents(sizes, first_nights)


def _print(title: str, stages: dict[str, list[Request]]) -> None:
    lines = []
    for name, requests in stages.items():
        kinds = Counter(map(kind_of, requests)).most_common(3)
        size = f"{sum(request.bytes for request in requests) / 1e6:,.1f}"
        most = ", ".join(f"{kind} {count}" for kind, count in kinds)
        note = units_note(requests) if name == _ENCODING else ""
        lines.append((name, f"{len(requests):,}", size, f"{chain(requests):,}", note, most))
    header = ("stage", "requests", "MB", "longest chain", "chains of units", "most frequent")
    print_table(f"{title}; {machine()}", lines, header)


def _print_exponents(sizes: Sequence[int], nights: Sequence[dict[str, list[Request]]]) -> None:
    lines = []
    for name in nights[-1]:
        stages = [night.get(name, []) for night in nights]
        counts, chains = list(map(len, stages)), list(map(chain, stages))
        sizes_mb = [sum(request.bytes for request in stage) / 1e6 for stage in stages]
        lines.append((name, *(exponent(sizes, values) for values in (counts, sizes_mb, chains))))
    totals = [sum(map(len, night.values())) for night in nights]
    lines.append(("all", exponent(sizes, totals), "", ""))
    title = f"Exponents of rows^b from {sizes[0]:,} to {sizes[-1]:,} rows, first nights"
    print_table(title, lines, ("stage", "requests", "MB", "longest chain"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--again", type=int, default=1, help="nights after the first")
    given = parser.parse_args()
    main(given.rows, given.again)
