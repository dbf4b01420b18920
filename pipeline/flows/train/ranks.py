"""Run the ranks of a training on Ray Train: start them together, and restart all if one is lost.

Only this module runs Ray Train.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.daemon import in_daemon_thread
from pipeline.errors import ConfigError, PipelineError, TransientError
from pipeline.flows.workers.address import ClusterAddress
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.nodes import ResourceDemand, describe_resources
from pipeline.flows.workers.ray_internals import (
    TRAIN_START_TIMEOUT,
    TRAIN_STATE,
    TRAIN_VARIABLES,
    lost_rank_errors,
    start_timeout_error,
)
from pipeline.log import RunningStage, announce, counted, listening
from pipeline.settings import ClusterSettings
from pipeline.settings.training import TrainSettings
from pipeline.store.files.disk import temporary_folder
from pipeline.text.rows.batches import RankSlice

if TYPE_CHECKING:
    from pipeline.flows.workers.heartbeat import Call
    from pipeline.flows.workers.watch import Watch


# Words in the errors of a collective operation whose peer is lost.
_LOST_PEER_WORDS = (
    "gloo",
    "nccl",
    "connection reset by peer",
    "connection closed by peer",
    "socket",
    "broken pipe",
)

# Codes of NCCL for a wrong call, such as two ranks on one GPU: it would fail again after any restart.
_NCCL_REFUSALS = ("ncclinvalidusage", "ncclinvalidargument")


class LostPeer(Exception):
    """A collective operation failed because another worker, or the network to it, is lost."""


def is_lost_peer(error: RuntimeError) -> bool:
    """Return whether an error of torch says that a collective operation has lost a peer."""
    return any(word in str(error).lower() for word in _LOST_PEER_WORDS)


def nccl_refusal(error: RuntimeError) -> str | None:
    """Return NCCL's reason, if it refuses how the workers are connected; None for any other error."""
    lines = str(error).splitlines()
    if not any(code in line.lower() for line in lines for code in _NCCL_REFUSALS):
        return None
    return (lines[-1].removeprefix("Last error:").strip() or lines[0])[:200]


def failures_by_rank(error: Exception) -> Mapping[int, Exception]:
    """Return the error of each worker, by rank; an error of the whole group is under -1."""
    from ray.train import ControllerError, WorkerGroupError

    if isinstance(error, WorkerGroupError):
        return error.worker_failures
    return {-1: error.controller_failure if isinstance(error, ControllerError) else error}


def describe_loss(failures: Mapping[int, Exception], group_error: Exception) -> str:
    """Describe the loss of a worker.

    Args:
        failures: error of each worker that failed, by rank.
        group_error: error of the whole group, with the tracebacks of all workers.

    Raises:
        PipelineError: one of the workers raised it.
        Exception: `group_error`, if a worker raised an error that is a defect.
    """
    from ray.exceptions import RayError

    for error in failures.values():
        if isinstance(error, PipelineError):
            raise error
    lost = (RayError, LostPeer, *lost_rank_errors())
    if any(not isinstance(error, lost) for error in failures.values()):
        raise group_error
    # A rank that lost its peer is not the cause, so the error of another rank is described if there is one.
    rank, first = min(failures.items(), key=lambda item: (isinstance(item[1], LostPeer), item[0]))
    cause = getattr(first, "health_check_failure", first)
    return f"rank {rank}: {type(cause).__name__}: {str(cause).splitlines()[0][:200]}"


_POLL_S = 0.5
# Ray's timeout for the start, as a multiple of ours: ours comes first, and its message names what is missing.
_RAY_TIMEOUT_FACTOR = 1.2


class Work(Protocol):
    """Work of one rank, as a callable that can be pickled."""

    def __call__(self, rank_slice: RankSlice, device: str, report: Callable[[int, str], None]) -> None:
        """Do all work of the rank.

        Args:
            rank_slice: number of this rank, and number of ranks.
            device: device of the rank.
            report: called with the number of finished steps and a text to show; only the first rank's reports
                are shown.
        """


@dataclass(frozen=True)
class RankGroup:
    """Workers that train together."""

    train: TrainSettings
    """number of ranks, threads of each, and number of restarts before the training is given up"""
    cluster: ClusterSettings
    """CPUs and GPUs of each rank, and the time within which the cluster must have room for all"""
    name: str = "training"
    """name of the training in Ray's dashboard"""

    def __post_init__(self) -> None:
        gpus = self.cluster.gpus_per_worker
        if self.train.workers > 1 and gpus % 1:
            raise ConfigError(
                "cluster.gpus_per_worker",
                f"a whole number, so that each of {self.train.workers} workers (train.workers) has its own",
                f"{gpus:g}",
                "set it to 1, or train with one worker",
            )

    @property
    def demand(self) -> ResourceDemand:
        """Resources of one rank."""
        return ResourceDemand(self.cluster.cpus_per_worker, self.cluster.gpus_per_worker)

    def __str__(self) -> str:
        resources = describe_resources(self.cluster.cpus_per_worker, self.cluster.gpus_per_worker)
        return f"{counted(self.train.workers, 'worker')} of {resources}"

    def check(self, workers: Workers) -> None:
        """Raise ConfigError if the cluster has too little room for all ranks, and cannot grow."""
        room = self.demand.fit(workers.nodes)
        if workers.grows or room >= self.train.workers:
            return
        if not room:
            raise self.demand.too_large_error(workers.nodes)
        raise ConfigError(
            "cluster",
            f"room for {self} (train.workers, cluster.cpus_per_worker, cluster.gpus_per_worker)",
            f"room for {room} on {self.demand.found(workers.nodes)}",
            "lower train.workers: a training continues with any number",
        )

    def run(self, work: Work, bar: RunningStage | None = None) -> None:
        """Run the work on every rank. If a rank is lost, start all of them again from the last checkpoint.

        Raises:
            PipelineError: the error that one of the ranks raised; the work is not tried again.
            TransientError: ranks were lost more often than train.failures, or the cluster had no room for all
                of them within cluster.patience_s.
        """
        failures = self.train.failures
        for restarts in range(failures + 1):
            loss = self._run_once(work, bar)
            if loss is None:
                return
            if restarts < failures:
                announce(
                    f"a training worker is lost ({loss}); all of them start again from the last checkpoint"
                )
        raise TransientError(
            "training",
            f"at most {failures} lost workers (train.failures)",
            f"{failures + 1}, the last one: {loss}",
            "free memory (a smaller train.order.batch_rows, train.chunk_rows, more cluster.cpus_per_worker), "
            "then run again: it continues from there",
        )

    def _run_once(self, work: Work, bar: RunningStage | None) -> str | None:
        """Run all ranks once. Returns None if they finish, or a description of the loss of a rank."""
        from ray.train import TrainingFailedError

        from pipeline.flows.workers.watch import watch_call

        with (
            watch_call("training", self.demand, self.train.failures + 1, bar) as (call, watch),
            self._storage() as storage,
        ):
            try:
                # in the main thread, Ray Train would end with exit code 0 at Ctrl-C
                training = in_daemon_thread(lambda: self._trainer(work, call, storage).fit(), "training")
                _wait_for(training, watch)
            except TrainingFailedError as error:
                failures = failures_by_rank(error)
                if any(isinstance(cause, start_timeout_error()) for cause in failures.values()):
                    raise TransientError(
                        "cluster",
                        f"room for {self} within {self.cluster.patience_s:g} s (cluster.patience_s)",
                        "not all of them",
                        "add nodes, end other work on them, or lower train.workers; then run again: "
                        "it continues",
                    ) from None
                return describe_loss(failures, error)
        return None

    def _trainer(self, work: Work, call: "Call", storage: str) -> Any:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        gpus, threads = self.cluster.gpus_per_worker, self.train.threads
        # Workers on other nodes inherit no environment variables from the driver.
        network_interfaces = {
            name: os.environ[name]
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
            if name in os.environ
        }
        return TorchTrainer(
            _run_rank,
            train_loop_config={"work": work, "call": call, "threads": threads},
            torch_config=TorchConfig(backend="nccl" if gpus else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=self.train.workers,
                use_gpu=bool(gpus),
                resources_per_worker={"CPU": self.cluster.cpus_per_worker} | ({"GPU": gpus} if gpus else {}),
                placement_strategy="PACK" if gpus else "SPREAD",
            ),
            run_config=RunConfig(
                name=self.name,
                storage_path=storage,
                # Ray does not restart: `run` decides after which losses the ranks start again.
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
                worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads), **network_interfaces}},
            ),
        )

    @contextmanager
    def _storage(self) -> Iterator[str]:
        """Set Ray Train's environment variables, and yield a temporary folder as its storage path.

        Ray Train requires the folder but stores nothing in it: checkpoints are in the training's own store.
        """
        timeout_s = _RAY_TIMEOUT_FACTOR * self.cluster.patience_s
        variables = TRAIN_VARIABLES | {TRAIN_START_TIMEOUT: f"{timeout_s:g}"}
        if not ClusterAddress.of(self.cluster).is_local:
            variables |= TRAIN_STATE
        new = {name: value for name, value in variables.items() if name not in os.environ}
        os.environ.update(new)
        try:
            with temporary_folder("manta-train-") as folder:
                yield str(folder)
        finally:
            for name in new:
                os.environ.pop(name, None)


def _run_rank(config: dict[str, Any]) -> None:
    """Run the work of one rank. Ray Train calls this function in every worker."""
    import ray.train.torch
    import torch

    torch.set_num_threads(config["threads"])
    context, call = ray.train.get_context(), config["call"]
    rank_slice = RankSlice(context.get_world_rank(), context.get_world_size())
    # other ranks print, to a log file of their worker
    listens: AbstractContextManager[list[str]] = listening() if rank_slice.rank == 0 else nullcontext([])
    with call.heartbeats(), listens as log_lines:
        # the first rank is enough: if another rank hangs, the first one waits for it
        if rank_slice.rank == 0:
            call.record_start(0)
        report = partial(_report, call, log_lines, rank_slice.rank)
        try:
            config["work"](rank_slice, str(ray.train.torch.get_device()), report)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                "train",
                "a step that fits into the GPU's memory",
                str(error).splitlines()[0][:200],
                "lower train.chunk_tokens, train.chunk_rows or train.order.batch_rows, or set "
                "train.checkpoint_layers=true or train.precision=bfloat16",
            ) from None
        except RuntimeError as error:
            if (refusal := nccl_refusal(error)) is not None:
                raise ConfigError(
                    "train.workers",
                    "workers that NCCL can connect, each with a GPU of its own",
                    refusal,
                    "start one Ray node for each machine, with all of its GPUs, or train with one worker",
                ) from None
            if is_lost_peer(error):
                raise LostPeer(str(error).splitlines()[0][:200]) from None
            raise
        finally:
            _forward_log(call, log_lines)


def _report(call: "Call", log_lines: list[str], rank: int, step: int, note: str) -> None:
    """Report a step of the first rank to the driver; all ranks take the same steps."""
    if rank == 0:
        call.report_rows(0, step, note, more=False)  # between two steps the model may be evaluated or saved
    _forward_log(call, log_lines)


def _forward_log(call: "Call", log_lines: list[str]) -> None:
    """Send log lines to the driver."""
    for line in log_lines:
        call.send_message(line)
    log_lines.clear()


def _wait_for(future: "Future[Any]", watch: "Watch") -> None:
    """Wait for the training, and raise its error; if the workers hang, raise the error of the watch."""
    while not wait([future], timeout=_POLL_S).done:
        watch.check()
    watch.poll()
    future.result()
