"""Run three Ray nodes on this machine, in a process of their own.

The process prints their address and then reads commands: `remove NUMBER` ends every process of a worker node,
as if it had lost its power; `kill NUMBER` kills its raylet alone, with SIGKILL; an empty line ends all.

The nodes share the address and the disk of this machine, but each has its own raylet, object store and
workers.
"""

import json
import os
import signal
import sys

from pipeline.flows.workers.cluster import silence_ray


def main() -> None:
    silence_ray(False)
    from ray.cluster_utils import Cluster

    own = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args=own)
    others = [cluster.add_node(wait=True, **own) for _ in range(2)]
    raylets = [_raylet(node) for node in (cluster.head_node, *others)]
    print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
    for line in sys.stdin:
        order, _, number = line.strip().partition(" ")
        if order == "remove":
            cluster.remove_node(others[int(number)], allow_graceful=False)
        elif order == "kill":
            os.kill(_raylet(others[int(number)]), signal.SIGKILL)
        else:
            break
        print("done", flush=True)
    cluster.shutdown()


def _raylet(node: object) -> int:
    processes = node.all_processes["raylet"]  # type: ignore[attr-defined]
    return int(processes[0].process.pid)


if __name__ == "__main__":
    main()
