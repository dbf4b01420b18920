"""Measure what a shadow costs: requests per second and latency of `manta serve` with and without --shadow.

    python -m tests.benchmarks.shadow ROOT RELEASE --clients 1 8 --rounds 8 --seconds 5

Two services of ROOT run all the time, one with `--shadow RELEASE`. They are loaded in turn, and the order
changes from round to round, so that other work on the machine affects both alike. Before the other service is
loaded, the shadow answers the searches that wait for it. The ratio is that of the rounds' medians, with the
least and the largest ratio of a round.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence

import aiohttp
import numpy as np

from pipeline.index.search.search import open_release
from tests.benchmarks.machine import machine, print_table, spread
from tests.benchmarks.serve import load, service, texts_of

_WAIT_S = 300.0  # time for the shadow to open
HEADER = ("clients", "number", "without", "with", "with / without")


async def outcomes(url: str) -> dict[str, int]:
    """Return the number of requests of the shadow by outcome."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}release") as response:
        found: dict[str, int] = (await response.json())["shadow"]["outcomes"]
    return found


async def wait_until_open(url: str) -> None:
    """Wait until the shadow answers."""
    deadline = time.monotonic() + _WAIT_S
    while "is compared" not in (await _shadow(url))["state"]:
        assert time.monotonic() < deadline, await _shadow(url)
        await asyncio.sleep(0.5)


async def _shadow(url: str) -> dict[str, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}release") as response:
        found: dict[str, str] = (await response.json())["shadow"]
    return found


async def wait_until_idle(url: str) -> None:
    """Wait until the shadow has answered all searches that wait for it."""
    before = await outcomes(url)
    while True:
        await asyncio.sleep(1.0)
        now = await outcomes(url)
        if now == before:
            return
        before = now


async def measure(
    plain: str, shadowed: str, queries: Sequence[str], given: argparse.Namespace, clients: int
) -> list[tuple[str, ...]]:
    """Load both services in turn. Returns rows of the table."""
    found: dict[str, list[tuple[float, float, float]]] = {plain: [], shadowed: []}
    errors = 0
    for number in range(given.rounds):
        for url in (plain, shadowed) if number % 2 else (shadowed, plain):
            durations, failed = await load(url, queries, clients, given.seconds)
            errors += failed
            median, p99 = 1_000 * np.quantile(durations, [0.5, 0.99])
            found[url].append((len(durations) / given.seconds, median, p99))
            await wait_until_idle(shadowed)
    print(f"{clients} clients: {errors} errors; requests of the shadow: {await outcomes(shadowed)}")
    rows = []
    for column, name in enumerate(("requests/s", "p50, ms", "p99, ms")):
        without, with_ = (np.array(found[url])[:, column] for url in (plain, shadowed))
        ratios = with_ / without
        ratio = f"{np.median(with_) / np.median(without):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
        rows.append(
            (str(clients), name, spread(without.tolist(), ".1f"), spread(with_.tolist(), ".1f"), ratio)
        )
    return rows


async def compare(plain: str, shadowed: str, queries: Sequence[str], given: argparse.Namespace) -> None:
    """Measure each number of clients, and print the table and the shadow's verdict."""
    await wait_until_open(shadowed)
    for url in (plain, shadowed):
        await load(url, queries, 1, 2.0)
    rows = []
    for clients in given.clients:
        rows += await measure(plain, shadowed, queries, given, clients)
    print_table("median of the rounds (smallest to largest)", rows, HEADER)
    print(f"\n{(await _shadow(shadowed))['verdict']}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("shadow")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    queries = texts_of(open_release(given.root))
    print(f"{machine()}\n")
    with service(given.root) as plain, service(given.root, "--shadow", given.shadow) as shadowed:
        asyncio.run(compare(plain, shadowed, queries, given))


if __name__ == "__main__":
    main()
