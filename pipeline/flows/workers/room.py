"""Resources of a cluster's nodes, and whether workers fit on them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pipeline.errors import ConfigError, TransientError

_seen: dict[str, set["Node"]] = {}  # kinds of nodes seen, by Ray job
SMALLER = "lower cluster.cpus_per_worker or cluster.gpus_per_worker, or add nodes that hold one worker each"


@dataclass(frozen=True)
class Node:
    """Resources that one node offers to Ray."""

    cpus: float
    gpus: float = 0.0

    def fit(self, cpus: float, gpus: float) -> int:
        """Return how many workers with `cpus` and `gpus` fit. A fraction of a GPU comes from one GPU."""
        by_gpu = float("inf")
        if gpus:
            by_gpu = int(self.gpus) * int(1 / gpus) if gpus < 1 else int(self.gpus / gpus)
        return int(min(self.cpus / cpus, by_gpu))


@dataclass(frozen=True)
class Needs:
    """Resources of one worker.

    Attributes:
        cpus: CPUs of each.
        gpus: GPUs of each; may be a fraction.
        workers: how many must fit before the work may go on.
    """

    cpus: float
    gpus: float
    workers: int = 1

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"

    def fit(self, nodes: Iterable[Node]) -> int:
        """Return how many workers fit on the nodes when nothing else runs there."""
        return sum(node.fit(self.cpus, self.gpus) for node in nodes)

    def _asked(self) -> str:
        return f"{self.workers} workers of {self}" if self.workers > 1 else f"one worker of {self}"

    def too_few(self, nodes: Collection[Node]) -> ConfigError:
        """Return the error for a cluster that cannot grow and has no room for cluster.workers.min workers."""
        return ConfigError(
            "cluster.workers.min",
            f"room for {self._asked()}",
            f"room for {self.fit(nodes)} on {described(nodes)}, and the cluster cannot grow",
            "lower it or cluster.cpus_per_worker, or add nodes",
        )

    def too_large(
        self, nodes: Collection[Node], addable: Collection[Node] = (), remedy: str = SMALLER
    ) -> ConfigError:
        """Return the error for a worker that fits neither the nodes nor the `addable` ones."""
        more = f", and for more to be added {_kinds(addable)} each" if addable else ""
        return ConfigError("cluster", f"{self} for one worker", described(nodes) + more, remedy)

    def none_came(self, nodes: Collection[Node], waited_s: float) -> TransientError:
        """Return the error for workers that fit nodes of the autoscaler, which has not added enough."""
        within, remedy = (
            f"within {waited_s:g} s (cluster.wait_s)",
            "look at `ray status` and the quota for such",
        )
        if self.workers > 1 and (room := self.fit(nodes)):
            expected = f"room for {self._asked()} (cluster.workers.min), {within}"
            found = f"room for {room} on {described(nodes)}"
            remedy = f"the autoscaler can add nodes: {remedy} machines, lower cluster.workers.min, or raise"
        else:
            expected = f"{self} for one worker, {within}"
            found = f"{described(nodes)}, and no node came that holds it"
            remedy = f"the autoscaler can add one: {remedy} machines, or raise"
        remedy += " cluster.wait_s; then run again: finished units are kept"
        return TransientError("cluster", expected, found, remedy)

    def lost(self, nodes: Collection[Node], waited_s: float) -> TransientError:
        """Return the error for a worker that fitted a node earlier, but none of the nodes that are left."""
        return TransientError(
            "cluster",
            f"{self} for one worker, within {waited_s:g} s (cluster.wait_s)",
            f"{described(nodes)}, and none since one that holds it was lost",
            "start the lost node or one like it, then run again: finished units are kept",
        )


def described(nodes: Collection[Node]) -> str:
    """Return the nodes in words: how many, and of which kinds."""
    if not nodes:
        return "no node"
    each = _kinds(nodes)
    return f"{len(nodes)} nodes of {each}" if len(nodes) > 1 else f"one node of {each}"


def _kinds(nodes: Iterable[Node]) -> str:
    return ", ".join(dict.fromkeys(f"{node.cpus:g} CPUs and {node.gpus:g} GPUs" for node in nodes))


def nodes_alive() -> dict[str, tuple[str, Node]]:
    """Return address and resources of each living node of the connected cluster, by its id."""
    import ray

    found = {
        node["NodeID"]: (
            node["NodeManagerAddress"],
            Node(node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    }
    _seen.setdefault(_connection(), set()).update(node for _, node in found.values())
    return found


def nodes_seen() -> frozenset[Node]:
    """Return the kinds of nodes that `nodes_alive` has found since the connection, including lost nodes."""
    return frozenset(_seen.get(_connection(), ()))


def _connection() -> str:
    import ray

    return str(ray.get_runtime_context().get_job_id())


def addable() -> tuple[Node, ...]:
    """Return the kinds of nodes that can be added, as Ray's autoscaler (v2) reports them to the cluster.

    Ray has no public call for it.
    """
    from ray._private.state import state

    config = state.get_cluster_config()
    return tuple(
        Node(float(group.resources.get("CPU", 0)), float(group.resources.get("GPU", 0)))
        for group in (config.node_group_configs if config else ())
        if group.resources and (group.max_count < 0 or group.max_count > group.min_count)
    )
