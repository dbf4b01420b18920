"""Three Ray nodes on this machine, held by a process of their own.

Prints their address, then obeys: `remove` and `kill` name a worker node, an empty line ends it.

Nodes share this machine's address and disk; what they do not share is a raylet, an object store and their
workers. `remove` ends every process of the node as if it had lost its power, `kill` its raylet alone, by kill
-9.
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
