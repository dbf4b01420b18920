"""Compare `manta serve` with the same search as a deployment of Ray Serve, under load.

    pip install "ray[serve]"
    python -m tests.benchmarks.ray_serve ROOT --clients 1 4 16 64 --seconds 8

The deployment is made as Ray's documentation shows it: one replica, and concurrent requests in batches.
Clients are those of `serve`; the two services are measured in turn.
"""

import argparse
import asyncio
import os
import time
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from pipeline.index.search.search import open_release
from pipeline.targets.values import json_rows
from tests.benchmarks.machine import machine, print_table
from tests.benchmarks.serve import HEADER, load, service, summary, texts_of

_K = 10


@serve.deployment(max_ongoing_requests=256)
class SearchDeployment:
    """A search of a release over HTTP."""

    def __init__(self, root: str) -> None:
        self._release = open_release(root)
        self._release.search(["a text that loads the encoder"], _K)

    @serve.batch(max_batch_size=256, batch_wait_timeout_s=0)
    async def search(self, queries: list[str]) -> list[list[dict[str, Any]]]:
        """Return the answers to each query of a batch."""
        answers: list[list[dict[str, Any]]] = [[] for _ in queries]
        for row in json_rows(self._release.search(queries, _K)):
            answers[row.pop("query")].append(row)
        return answers

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answer a request."""
        (query,) = (await request.json())["queries"]
        return {"answers": [await self.search(query)]}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    queries, rows = texts_of(open_release(given.root)), []
    # else Ray's replicas have a lower priority than `manta serve`
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    serve.run(SearchDeployment.bind(given.root), route_prefix="/search")
    with service(given.root) as url:
        services = {"manta serve": url, "Ray Serve": "http://127.0.0.1:8000/"}
        for address in services.values():
            asyncio.run(load(address, queries, 4, 2.0))
        for clients in given.clients:
            for _ in range(given.rounds):
                for name, address in services.items():
                    began = time.perf_counter()
                    durations, errors = asyncio.run(load(address, queries, clients, given.seconds))
                    took_s = time.perf_counter() - began
                    rows.append((name, str(clients), *summary(durations, took_s, errors)))
    print_table(machine(), rows, ("service", *HEADER))
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
