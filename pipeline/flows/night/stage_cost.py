"""The cost of a stage of a night, from the work that its processes do and the bytes that they transfer.

A stage has work that its workers share, work that one process does while the others wait, and bytes that the
nodes transfer. Their times are added, as if nothing overlapped.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.flows.night import rates


class StageCost(NamedTuple):
    """The predicted cost of one stage.

    Attributes:
        stage: name of the stage.
        cpu_s: CPU seconds of all processes.
        gpu_s: GPU seconds of all processes.
        alone_s: seconds in which one process works and the others wait.
        moved_bytes: bytes that are read from the store or written to it.
        requests: number of small requests that workers wait for.
        workers: number of workers that share the work; 1 if one process does all.
        wall_s: seconds from the beginning of the stage to its end.
    """

    stage: str
    cpu_s: float
    gpu_s: float
    alone_s: float
    moved_bytes: float
    requests: float
    workers: int
    wall_s: float


@dataclass(frozen=True)
class NightCost:
    """The predicted cost of a night on all nodes of a cluster."""

    nodes: int
    stages: tuple[StageCost, ...]

    @property
    def hours(self) -> float:
        """Hours from the beginning of the night to its end."""
        return sum(stage.wall_s for stage in self.stages) / 3_600

    @property
    def node_hours(self) -> float:
        """Hours times nodes."""
        return self.hours * self.nodes

    def of(self, stage: str) -> StageCost:
        """Return the cost of one stage."""
        return next(each for each in self.stages if each.stage == stage)

    def facts(self) -> dict[str, Any]:
        """Return the costs as a JSON object."""
        stages = [each._asdict() for each in self.stages]
        return {"hours": self.hours, "node_hours": self.node_hours, "stages": stages}


@dataclass(frozen=True)
class StageWork:
    """The work of one stage.

    Attributes:
        cpu_s: CPU seconds that the workers share.
        gpu_s: GPU seconds that the workers share; the CPU of a worker waits for its GPU.
        workers: largest number of workers.
        items: number of items that are handed to the workers.
        largest: the largest item, as a proportion of the work.
        moved_bytes: bytes that the items transfer.
        alone_s: CPU seconds of one process, while the others wait.
        alone_bytes: bytes that this process transfers.
        requests: number of small requests that the workers wait for.
        gpus: GPUs of all workers together; workers that share one take turns.
    """

    cpu_s: float = 0.0
    gpu_s: float = 0.0
    workers: int = 1
    items: int = 1
    largest: float = 1.0
    moved_bytes: float = 0.0
    alone_s: float = 0.0
    alone_bytes: float = 0.0
    requests: float = 0.0
    gpus: float = 1.0

    def cost(self, stage: str, nodes: int) -> StageCost:
        """Return the cost on a number of nodes.

        Idle workers take the next item, so they need at most as long as by the bound of Graham (1966). They
        need at least as long as their GPUs, and as the driver, which hands out one item after the other.
        """
        shared_s = (self.cpu_s + self.gpu_s) * (1 / self.workers + self.largest * (1 - 1 / self.workers))
        moved_s = self.moved_bytes / (min(nodes, self.items) * rates.NODE_BYTES_PER_S)
        moved_s += self.requests * rates.REQUEST_S / (self.workers * rates.REQUESTS_AT_ONCE)
        handed_out_s = self.items * rates.RAY_S_PER_ITEM if self.workers > 1 else 0.0
        alone_s = self.alone_s + self.alone_bytes / rates.NODE_BYTES_PER_S
        return StageCost(
            stage=stage,
            cpu_s=self.cpu_s + self.alone_s,
            gpu_s=self.gpu_s,
            alone_s=alone_s,
            moved_bytes=self.moved_bytes + self.alone_bytes,
            requests=self.requests,
            workers=self.workers,
            wall_s=alone_s + max(shared_s + moved_s, self.gpu_s / self.gpus, handed_out_s),
        )
