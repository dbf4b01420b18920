"""Resources of a cluster's nodes, the resources that workers demand, and whether they fit."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pipeline.errors import ConfigError, TransientError
from pipeline.flows.workers.ray_internals import addable_resources
from pipeline.log import counted, size

# Resources of all nodes that were alive at some time, by Ray job.
_seen_by_job: dict[str, set["Node"]] = {}
# Addresses of the nodes that are not yet known to be lost, by Ray job and node id.
_addresses_by_job: dict[str, dict[str, str]] = {}
# Ids of the nodes that are known to have joined, by Ray job.
_joined_by_job: dict[str, set[str]] = {}
REMEDY_SMALLER = (
    "lower cluster.cpus_per_worker or cluster.gpus_per_worker, or add nodes on which a worker fits"
)


@dataclass(frozen=True)
class Node:
    """Resources that one node offers to Ray."""

    cpus: float
    gpus: float = 0.0
    memory: float = math.inf
    """bytes for workers, which Ray takes to be about half of the machine's or pod's memory"""

    @classmethod
    def of(cls, resources: Mapping[str, float]) -> "Node":
        """Return the node that has these resources, which are under Ray's names."""
        return cls(
            float(resources.get("CPU", 0)),
            float(resources.get("GPU", 0)),
            float(resources.get("memory", math.inf)),
        )

    def fit(self, demand: "ResourceDemand") -> int:
        """Return how many workers fit on the node.

        A fraction of a GPU is a fraction of one GPU: at 0.4, two workers share a GPU.
        """
        by_gpu = by_memory = math.inf
        if gpus := demand.gpus:
            by_gpu = int(self.gpus) * int(1 / gpus) if gpus < 1 else int(self.gpus / gpus)
        if demand.memory:
            by_memory = self.memory / demand.memory
        return int(min(self.cpus / demand.cpus, by_gpu, by_memory))


@dataclass(frozen=True)
class ResourceDemand:
    """Resources of each worker, and the number of workers that must fit before work begins."""

    cpus: float
    """CPUs of each worker"""
    gpus: float
    """GPUs of each worker; may be a fraction"""
    workers: int = 1
    """number of workers that must fit"""
    memory: float = 0.0
    """bytes of each worker; 0 if they need not be reserved"""

    def __str__(self) -> str:
        return describe_resources(self.cpus, self.gpus, self.memory)

    def fit(self, nodes: Iterable[Node]) -> int:
        """Return how many workers fit on the nodes when nothing else runs there."""
        return sum(node.fit(self) for node in nodes)

    def found(self, nodes: Collection[Node]) -> str:
        """Describe the nodes: how many there are, and what they have of the demanded kinds of resources."""
        if not nodes:
            return "no node"
        kinds = self._kinds(nodes)
        return f"{len(nodes)} nodes of {kinds}" if len(nodes) > 1 else f"one node of {kinds}"

    def _kinds(self, nodes: Iterable[Node]) -> str:
        """Return the different resources of the nodes."""
        described = (
            describe_resources(node.cpus, node.gpus, node.memory if self.memory else 0.0) for node in nodes
        )
        return ", ".join(dict.fromkeys(described))

    def _description(self) -> str:
        return f"{self.workers} workers of {self}" if self.workers > 1 else f"one worker of {self}"

    def too_few_error(self, nodes: Collection[Node]) -> ConfigError:
        """Return the error for a cluster that cannot grow and has no room for cluster.workers.min workers."""
        return ConfigError(
            "cluster.workers.min",
            f"room for {self._description()}",
            f"room for {self.fit(nodes)} on {self.found(nodes)}, and the cluster cannot grow",
            "lower it or cluster.cpus_per_worker, or add nodes",
        )

    def too_large_error(
        self, nodes: Collection[Node], addable: Collection[Node] = (), remedy: str = REMEDY_SMALLER
    ) -> ConfigError:
        """Return the error for a worker that fits neither the nodes nor the `addable` ones."""
        more = f", and nodes that can be added have {self._kinds(addable)}" if addable else ""
        if self.memory:
            remedy = f"{remedy}; a smaller index.part_gib needs less memory"
        return ConfigError("cluster", f"{self} for one worker", self.found(nodes) + more, remedy)

    def not_added_error(self, nodes: Collection[Node], waited_s: float) -> TransientError:
        """Return the error for nodes that the autoscaler could add, but has not added in time."""
        within = f"within {waited_s:g} s (cluster.wait_s)"
        look = "look at `ray status` and the quota for such machines"
        again = "raise cluster.wait_s; then run again: finished units are kept"
        if self.workers > 1 and (room := self.fit(nodes)):
            expected = f"room for {self._description()} (cluster.workers.min), {within}"
            found = f"room for {room} on {self.found(nodes)}"
            remedy = f"the autoscaler can add nodes: {look}, lower cluster.workers.min, or {again}"
        else:
            expected = f"{self} for one worker, {within}"
            found = f"{self.found(nodes)}, and no node came on which it fits"
            remedy = f"the autoscaler can add one: {look}, or {again}"
        return TransientError("cluster", expected, found, remedy)

    def lost_error(self, nodes: Collection[Node], waited_s: float) -> TransientError:
        """Return the error for a worker that fitted only nodes that have been lost."""
        return TransientError(
            "cluster",
            f"{self} for one worker, within {waited_s:g} s (cluster.wait_s)",
            f"{self.found(nodes)}, and none on which it fits since such a node was lost",
            "start the lost node or one like it, then run again: finished units are kept",
        )


def describe_resources(cpus: float, gpus: float, memory: float = 0.0) -> str:
    """Return resources as part of a message: 1 CPU and 0 GPUs."""
    described = f"{counted(float(cpus), 'CPU')} and {counted(float(gpus), 'GPU')}"
    return f"{described}, with {size(memory)} of memory" if memory else described


def nodes_alive() -> dict[str, tuple[str, Node]]:
    """Return (address, resources) of each node of the cluster that is alive, by node id."""
    import ray

    found = {
        node["NodeID"]: (node["NodeManagerAddress"], Node.of(node["Resources"]))
        for node in ray.nodes()
        if node["Alive"]
    }
    _seen_by_job.setdefault(_ray_job(), set()).update(node for _, node in found.values())
    addresses = _addresses_by_job.setdefault(_ray_job(), {})
    addresses.update({node_id: address for node_id, (address, _) in found.items()})
    return found


def take_lost(alive: Collection[str]) -> list[str]:
    """Return the addresses of nodes that `nodes_alive` has returned and that are lost now.

    Each address is returned once in a Ray job, even by successive or concurrent calls.

    Args:
        alive: ids of the nodes that are alive.
    """
    addresses = _addresses_by_job.get(_ray_job(), {})
    taken = [addresses.pop(node_id, None) for node_id in addresses.keys() - set(alive)]
    return [address for address in taken if address is not None]


def take_joined(alive: Collection[str]) -> set[str]:
    """Return the ids of nodes that have joined since the first call in this Ray job, each id once.

    Args:
        alive: ids of the nodes that are alive.
    """
    known = _joined_by_job.setdefault(_ray_job(), set(alive))
    joined = set(alive) - known
    known |= joined
    return joined


def nodes_seen() -> frozenset[Node]:
    """Return the resources of all nodes that `nodes_alive` has ever returned in this Ray job."""
    return frozenset(_seen_by_job.get(_ray_job(), ()))


def _ray_job() -> str:
    """Return an id of the Ray job; the id that Ray gives is the same in every local cluster of a process."""
    import ray

    context = ray.get_runtime_context()
    return f"{context.get_node_id()} {context.get_job_id()}"


def addable_nodes() -> tuple[Node, ...]:
    """Return the resources of nodes that Ray's autoscaler (v2) can add."""
    return tuple(map(Node.of, addable_resources()))
