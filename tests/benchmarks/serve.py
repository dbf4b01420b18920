"""Measure `manta serve` under load: queries per second, latency, and swaps of releases meanwhile.

    python -m tests.benchmarks.serve ROOT --clients 1 4 16 64 --seconds 20

ROOT is a root of releases, such as out/quickstart/releases. Each client sends one query at a time, with one
connection, and sends the next when it has the answer; queries are texts of the release itself. With --swaps,
the root is rolled back to each of its releases in turn, every two seconds, so swaps are part of the load.
With --body-mib, another client sends bodies of this size meanwhile, one after the other; their vectors have a
wrong dimension, so that they are parsed, but not searched for.
Any answer but 200, and any with fewer rows than asked for, counts as an error.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from urllib.parse import urlsplit

import aiohttp
import numpy as np

from pipeline.daemon import in_daemon_thread
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.benchmarks.machine import machine, print_table

_K = 10
_QUERIES = 500
_SWAP_S = 2.0
HEADER = ("clients", "queries/s", "p50, ms", "p99, ms", "slowest, ms", "errors")


async def ask(session: aiohttp.ClientSession, url: str, query: str) -> bool:
    """Send one query. Returns whether the answer is complete."""
    async with session.post(f"{url}search", json={"queries": [query], "k": _K}) as response:
        return response.status == 200 and len((await response.json())["answers"][0]) == _K


async def load(url: str, queries: Sequence[str], clients: int, seconds: float) -> tuple[np.ndarray, int]:
    """Send queries from several clients. Returns their durations in seconds and the number of errors."""
    durations, errors = list[float](), 0
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal errors
        async with aiohttp.ClientSession() as session:
            while (began := time.perf_counter()) < end:
                complete = await ask(session, url, queries[(number + len(durations)) % len(queries)])
                durations.append(time.perf_counter() - began)
                errors += not complete

    await asyncio.gather(*map(client, range(clients)))
    return np.array(durations), errors


def texts_of(release: OpenRelease) -> list[str]:
    """Return texts of a release, drawn at random, as queries."""
    vectors = np.random.default_rng(0).standard_normal((_QUERIES, release.manifest.index.dim), np.float32)
    texts: list[str] = release.search(vectors, 1, texts=True)["text"].to_pylist()
    return texts


@contextlib.contextmanager
def service(root: str, *options: str) -> Iterator[str]:
    """Run `manta serve` during the block. Yields its address, and prints how many lines it logged."""
    command = [sys.executable, "-m", "jobs.serve", root, "--port", "0", "--poll-s", "1", *options]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
            process.wait()
        log.seek(0)
        print(f"lines on standard error: {len(log.readlines())}")


def summary(durations: np.ndarray, seconds: float, errors: int) -> tuple[str, ...]:
    """Return queries per second, the quantiles of their durations in ms, and the errors, as text."""
    median, p99, slowest = 1_000 * np.quantile(durations, [0.5, 0.99, 1])
    return f"{len(durations) / seconds:,.0f}", f"{median:.1f}", f"{p99:.1f}", f"{slowest:.1f}", str(errors)


async def swap_releases(releases: Releases, numbers: Sequence[int]) -> None:
    """Roll back to each of the releases in turn, for ever."""
    turn = 0
    while True:
        await asyncio.to_thread(releases.rollback, numbers[turn % len(numbers)])
        turn += 1
        await asyncio.sleep(_SWAP_S)


def send_bodies(url: str, mib: float, stop: threading.Event) -> None:
    """Send large bodies until `stop` is set, and wait half a second after each."""
    address = urlsplit(url)
    vectors = np.random.default_rng(0).normal(size=(256, round(mib * 4096 / 20.6))).tolist()
    body = json.dumps({"vectors": vectors, "space_id": "any"})
    while not stop.wait(0.5):
        with contextlib.closing(http.client.HTTPConnection(address.hostname or "", address.port)) as client:
            client.request("POST", "/search", body, {"Content-Type": "application/json"})
            status = client.getresponse().status
            assert status in (400, 409), status


async def measure(url: str, root: str, queries: Sequence[str], given: argparse.Namespace) -> None:
    """Measure each number of clients, and print the table."""
    releases = Releases(open_store(root))
    numbers, current, rows = releases.numbers(), releases.get_or_current(None).release, []
    await load(url, queries, 1, 2.0)
    for clients in given.clients:
        swapping = asyncio.create_task(swap_releases(releases, numbers)) if given.swaps else None
        began = time.perf_counter()
        durations, errors = await load(url, queries, clients, given.seconds)
        seconds = time.perf_counter() - began
        if swapping:
            swapping.cancel()
            await asyncio.to_thread(releases.rollback, current)
        rows.append((str(clients), *summary(durations, seconds, errors)))
    print_table("under load", rows, HEADER)
    async with aiohttp.ClientSession() as session, session.get(f"{url}metrics") as response:
        swaps = re.search(r"^manta_serve_swaps_total (\S+)", await response.text(), re.MULTILINE)
    print(f"\nswaps: {float(swaps[1]) if swaps else 0:.0f}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--swaps", action="store_true")
    parser.add_argument("--body-mib", type=float, default=0.0)
    given = parser.parse_args()
    release = open_release(given.root)
    queries = texts_of(release)
    print(f"release {release.number} with {len(release):,} rows; {machine()}\n")
    with service(given.root) as url:
        stop, sender = threading.Event(), None
        if given.body_mib:
            sender = in_daemon_thread(partial(send_bodies, url, given.body_mib, stop), "bodies")
        try:
            asyncio.run(measure(url, given.root, queries, given))
        finally:
            stop.set()
        if sender is not None:
            sender.result()


if __name__ == "__main__":
    main()
