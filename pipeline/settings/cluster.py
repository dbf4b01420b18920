"""Settings of the Ray cluster and of the pools of workers on it."""

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from pipeline.config import Settings


class WorkerSettings(Settings):
    """Encode workers; a plain number (cluster.workers=4) is both.

    Both null: as many as fit the cluster now. Never more than there are units.
    """

    min: Annotated[int, Field(ge=1)] | None = None
    """as few as a pool may have; null: 1. Without room for them the command ends: at once with exit code 2
    where the cluster cannot grow, after cluster.wait_s with 75 where it can"""
    max: Annotated[int, Field(ge=1)] | None = None
    """as many as a pool may grow to, while nodes come; null: as many as fit the cluster now"""

    @model_validator(mode="after")
    def _range_is_one(self) -> "WorkerSettings":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min to be at most max")
        return self


class ClusterSettings(Settings):
    """The Ray cluster and the pools on it."""

    address: str | None = None
    """host:port or auto; null: the cluster of RAY_ADDRESS, as inside `ray job submit` (an http address is
    ignored), else a local Ray"""
    workers: WorkerSettings = WorkerSettings()
    cpus_per_worker: Annotated[float, Field(gt=0)] = 1.0
    """CPUs that Ray sets aside for an encode worker; encode.threads is what it uses"""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of an encode worker: a whole number, or a share such as 0.5; 0 encodes on the CPU"""
    index_workers: Annotated[int, Field(ge=1)] | None = None
    """workers that fill index shards; null: one per CPU"""
    small_rows: Annotated[int, Field(ge=0)] = 5_000
    """rows to encode up to which a night on this machine does without Ray: one process is done before Ray has
    started; 0 always starts Ray"""
    patience_s: Annotated[float, Field(ge=10)] = 900.0
    """seconds that a stage waits while none of its workers runs, for instance while others occupy the
    cluster; then it ends with exit code 75. A worker whose item shows no progress for so long (no rows, CPU
    time or transfer), and for ten times the slowest item so far, is killed, and the item begins again"""
    wait_s: Annotated[float, Field(ge=10)] | None = None
    """seconds that a stage waits for a node that holds one of its workers, where the cluster's autoscaler can
    add such nodes, or where one was there earlier in the run and is lost; then it ends with exit code 75.
    Where no node that is there or can be added holds a worker, it ends at once with exit code 2; null: as
    long as patience_s"""

    @field_validator("workers", mode="before")
    @classmethod
    def _number_is_both(cls, value: Any) -> Any:
        if type(value) is int:
            return {"min": value, "max": value}
        return WorkerSettings() if value is None else value

    @field_validator("gpus_per_worker")
    @classmethod
    def _shares_are_of_one_gpu(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError(
                "a share of one GPU or a whole number of GPUs, since Ray splits single GPUs only"
            )
        return value
