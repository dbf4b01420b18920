"""Settings of the Ray cluster and of its workers."""

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from pipeline.config import Settings


class WorkerSettings(Settings):
    """Number of encode workers; a plain number (cluster.workers=4) sets both min and max.

    If both are null, as many workers start as fit the cluster now. There are never more workers than units to
    encode.
    """

    min: Annotated[int, Field(ge=1)] | None = None
    """smallest number of workers; null: 1. If the cluster has no room for them, the command ends: at once
    with exit code 2 if the cluster cannot grow, else after cluster.wait_s with exit code 75"""
    max: Annotated[int, Field(ge=1)] | None = None
    """largest number of workers, reached as nodes are added; null: as many as fit the cluster now"""

    @model_validator(mode="after")
    def _min_is_at_most_max(self) -> "WorkerSettings":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min to be at most max")
        return self


class NodesSettings(Settings):
    """Nodes for which `manta plan` predicts the cost of a night; a plain number sets count.

    Nights do not read these settings.
    """

    count: Annotated[int, Field(ge=1)] | None = None
    """number of nodes; null: the nodes of the cluster at cluster.address or RAY_ADDRESS, else this machine"""
    cpus: Annotated[int, Field(ge=1)] | None = None
    """CPUs of each node; null: as many as this machine has"""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of each node"""

    @model_validator(mode="after")
    def _count_is_given(self) -> "NodesSettings":
        if self.count is None and (self.cpus is not None or self.gpus):
            raise ValueError("a value of count, the number of nodes, beside cpus and gpus")
        return self


class ClusterSettings(Settings):
    """The Ray cluster and its workers."""

    address: str | None = None
    """host:port or auto; null: the cluster of RAY_ADDRESS, as inside `ray job submit` (an http address is
    ignored), else a local Ray"""
    workers: WorkerSettings = WorkerSettings()
    nodes: NodesSettings = NodesSettings()
    cpus_per_worker: Annotated[float, Field(gt=0)] = 1.0
    """CPUs that Ray reserves for an encode worker; encode.threads is the number of threads that it uses, and
    its tokenizer uses all. A worker with a GPU needs several, as one CPU tokenizes less than a GPU encodes"""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of an encode worker: a whole number, or a fraction; 0 encodes on the CPU. With 0.5, two workers
    share a GPU, and one encodes while the other stores: faster, if the GPU's memory has room for both"""
    index_workers: Annotated[int, Field(ge=1)] | None = None
    """workers that fill index shards; null: one per CPU"""
    index_gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of a worker that fills index shards, with values as for gpus_per_worker. With faiss-gpu, they find
    the lists of rows and the exact neighbours by which recall is measured; 0 uses CPUs"""
    small_rows: Annotated[int, Field(ge=0)] = 5_000
    """a night on this machine does not start Ray for up to this many rows to encode, because one process
    finishes sooner; 0 always starts Ray"""
    patience_s: Annotated[float, Field(ge=10)] = 900.0
    """seconds that a stage waits while none of its workers runs, for instance because other jobs occupy the
    cluster; then it ends with exit code 75. A worker is killed and its item started again if the item shows
    no progress (rows, CPU time or transfers) for this long and for ten times the duration of the slowest
    item so far"""
    wait_s: Annotated[float, Field(ge=10)] | None = None
    """seconds that a stage waits for a node with room for one of its workers, if the cluster's autoscaler can
    add such a node, or if one was lost during the run; then it ends with exit code 75. If no node that exists
    or can be added has room for a worker, it ends at once with exit code 2; null: patience_s"""

    @field_validator("workers", mode="before")
    @classmethod
    def _number_is_min_and_max(cls, value: Any) -> Any:
        if type(value) is int:
            return {"min": value, "max": value}
        return WorkerSettings() if value is None else value

    @field_validator("nodes", mode="before")
    @classmethod
    def _number_is_count(cls, value: Any) -> Any:
        if type(value) is int:
            return {"count": value}
        return NodesSettings() if value is None else value

    @field_validator("gpus_per_worker", "index_gpus")
    @classmethod
    def _fraction_is_below_one(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError(
                "a fraction of one GPU or a whole number of GPUs, because Ray divides only single GPUs"
            )
        return value
