"""The workers of a training: start them together, restart all if one is lost, raise their errors."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pipeline.errors import ConfigError, PipelineError, TransientError
from pipeline.flows.workers.heartbeat import Call
from pipeline.flows.workers.room import Needs
from pipeline.flows.workers.watch import Watch, watched
from pipeline.flows.workers.workers import Workers
from pipeline.log import Running, listening, say
from pipeline.settings import ClusterSettings
from pipeline.settings.training import TrainSettings
from pipeline.text.rows.batches import RankSlice

_LOOK_S = 0.5
_LONGER = 1.2  # Ray's timeout / ours, so that ours is first, with a message that names what is missing
_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # Ray: 2; also the delay at the start and the end
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # saves an actor: a preempted node counts as lost
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in the settings mean the same on every rank
}
# words in the errors of a collective whose peer is lost
_LOST = ("gloo", "nccl", "connection reset by peer", "connection closed by peer", "socket", "broken pipe")


class Work(Protocol):
    """The work of one rank; it can be pickled."""

    def __call__(self, share: RankSlice, device: str, report: Callable[[int, str], None]) -> None:
        """Work to the end.

        Args:
            share: rank, and number of ranks.
            device: device of the rank.
            report: called with each finished step and a metric to show; only the first rank's reports count.
        """


class LostPeer(Exception):
    """A collective failed, because another worker or the network to it is lost."""


@dataclass(frozen=True)
class RankGroup:
    """Workers that train together.

    Attributes:
        workers: number of ranks.
        cpus: CPUs of each rank.
        gpus: GPUs of each rank.
        threads: torch threads of each rank.
        failures: number of restarts before the training is given up.
        patience_s: seconds in which all ranks must be placed.
    """

    workers: int
    cpus: float = 1.0
    gpus: float = 0.0
    threads: int = 1
    failures: int = 3
    patience_s: float = 900.0

    @classmethod
    def of(cls, train: TrainSettings, cluster: ClusterSettings) -> "RankGroup":
        """Return the workers that the settings ask for."""
        return cls(
            train.workers,
            cluster.cpus_per_worker,
            cluster.gpus_per_worker,
            train.threads,
            train.failures,
            cluster.patience_s,
        )

    def __str__(self) -> str:
        return f"{self.workers} workers of {self.cpus:g} CPUs and {self.gpus:g} GPUs"

    def check(self, workers: Workers) -> None:
        """Raise ConfigError if the cluster has no room for all ranks and cannot grow."""
        room = Needs(self.cpus, self.gpus).fit(workers.nodes)
        if room < self.workers and not workers.grows:
            raise ConfigError(
                "cluster",
                f"room for {self} (train.workers, cluster.cpus_per_worker, cluster.gpus_per_worker)",
                f"room for {room} on {len(workers.nodes)} nodes",
                "lower train.workers: a training continues with any number",
            )

    def run(self, work: Work, bar: Running | None = None) -> None:
        """Run the work on every rank; if one is lost, start all of them again from the last checkpoint.

        Raises:
            PipelineError: as one of the workers raised it; the work is not tried again.
            TransientError: workers died more often than `failures`, or could not be placed within
                `patience_s`.
        """
        for restarts in range(self.failures + 1):
            found = self._attempt(work, bar)
            if found is None:
                return
            if restarts < self.failures:
                say(f"a training worker is lost ({found}); all of them start again from the last checkpoint")
        raise TransientError(
            "training",
            f"workers that live (train.failures {self.failures})",
            f"{self.failures + 1} losses, the last one: {found}",
            "free memory (a smaller train.order.batch_rows, train.chunk_rows, more cluster.cpus_per_worker), "
            "then run again: it continues from there",
        )

    def _attempt(self, work: Work, bar: Running | None) -> str | None:
        """Run all ranks once. Returns None when they finish, else a description of the loss."""
        from ray.train import TrainingFailedError
        from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

        with (
            watched("training", Needs(self.cpus, self.gpus), self.failures + 1, bar) as (call, watch),
            self._storage() as storage,
        ):
            try:
                _follow(_thread(lambda: self._trainer(work, call, storage).fit()), watch)
            except TrainingFailedError as error:
                failures = _failures_of(error)
                if any(isinstance(each, WorkerGroupStartupTimeoutError) for each in failures.values()):
                    raise TransientError(
                        "cluster",
                        f"room for {self} within {self.patience_s:g} s (cluster.patience_s)",
                        "not all of them",
                        "add nodes, end other work on them, or lower train.workers; then run again: "
                        "it continues",
                    ) from None
                return describe_loss(failures, error)
        return None

    def _trainer(self, work: Work, call: Call, storage: str) -> Any:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        # workers on other nodes inherit no environment variables from the driver
        variables = {
            name: os.environ[name]
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
            if name in os.environ
        }
        return TorchTrainer(
            _work,
            train_loop_config={"work": work, "call": call, "threads": self.threads},
            torch_config=TorchConfig(backend="nccl" if self.gpus else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=self.workers,
                use_gpu=bool(self.gpus),
                resources_per_worker={"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {}),
                placement_strategy="PACK" if self.gpus else "SPREAD",
            ),
            run_config=RunConfig(
                name="training",
                storage_path=storage,
                # no restarts by Ray: `run` decides which losses are worth another start
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
                worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": str(self.threads), **variables}},
            ),
        )

    @contextmanager
    def _storage(self) -> Iterator[str]:
        """Set Ray Train's variables, and yield a folder, which it requires but stores nothing in.

        Checkpoints are in the training's own store, so other nodes need not see the folder.
        """
        wanted = _ENVIRONMENT | {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": f"{_LONGER * self.patience_s:g}"}
        new = {name: value for name, value in wanted.items() if name not in os.environ}
        os.environ.update(new)
        try:
            with tempfile.TemporaryDirectory(prefix="manta-train-") as folder:
                yield folder
        finally:
            for name in new:
                os.environ.pop(name, None)


def _work(config: dict[str, Any]) -> None:
    """Run the work of one rank; Ray Train calls it in every worker."""
    import ray.train.torch
    import torch

    torch.set_num_threads(config["threads"])
    context, call = ray.train.get_context(), config["call"]
    share = RankSlice(context.get_world_rank(), context.get_world_size())
    with call.alive(), listening() as heard:
        if share.rank == 0:
            call.begin(0)  # if any rank hangs, the first one waits for it, without progress
        try:
            config["work"](
                share, str(ray.train.torch.get_device()), partial(_report, call, heard, share.rank)
            )
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                "train",
                "a step that fits into the GPU's memory",
                str(error).splitlines()[0][:200],
                "lower train.chunk_rows or train.order.batch_rows, set train.checkpoint_layers=true, or "
                "train.precision=bfloat16",
            ) from None
        except RuntimeError as error:
            if any(word in str(error).lower() for word in _LOST):
                raise LostPeer(str(error).splitlines()[0][:200]) from None
            raise
        finally:
            _pass_on(call, heard, share.rank)


def _report(call: Call, heard: list[str], rank: int, step: int, note: str) -> None:
    """Report a step of the first rank: all ranks take the same steps."""
    if rank == 0:
        call.put(0, step, note, counted=False)  # between two steps the model may be evaluated or saved
    _pass_on(call, heard, rank)


def _pass_on(call: Call, heard: list[str], rank: int) -> None:
    """Forward the first rank's log lines to the driver."""
    if rank == 0:
        for sentence in heard:
            call.say(sentence)
    heard.clear()


def _thread(work: Callable[[], Any]) -> "Future[Any]":
    """Run `work` in a thread, because in the main thread Ray Train would end with exit code 0 at Ctrl-C."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised again by future.result()
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _follow(future: "Future[Any]", watch: Watch) -> None:
    while not wait([future], timeout=_LOOK_S).done:
        watch.check()
    watch.poll()
    future.result()


def _failures_of(error: Exception) -> Mapping[int, Exception]:
    """Return the error of each worker, by rank; an error of the whole group is under -1."""
    from ray.train import ControllerError, WorkerGroupError

    if isinstance(error, WorkerGroupError):
        return error.worker_failures
    return {-1: error.controller_failure if isinstance(error, ControllerError) else error}


def describe_loss(failures: Mapping[int, Exception], whole: Exception) -> str:
    """Describe the loss of a worker, given the error of each worker by rank.

    Raises:
        PipelineError: one of the workers raised it.
        Exception: `whole`, with all workers' tracebacks, if a worker raised any other error, which is a
            defect.
    """
    from ray.exceptions import RayError
    from ray.train.v2._internal.exceptions import (
        WorkerGroupStartupFailedError,
        WorkerHealthCheckFailedError,
        WorkerHealthCheckTimeoutError,
    )

    for error in failures.values():
        if isinstance(error, PipelineError):
            raise error
    lost = (
        RayError,
        LostPeer,
        WorkerHealthCheckFailedError,
        WorkerHealthCheckTimeoutError,
        WorkerGroupStartupFailedError,
    )
    if any(not isinstance(error, lost) for error in failures.values()):
        raise whole
    rank, first = min(failures.items(), key=lambda item: (isinstance(item[1], LostPeer), item[0]))
    cause = getattr(first, "health_check_failure", first)
    return f"rank {rank}: {type(cause).__name__}: {str(cause).splitlines()[0][:200]}"
