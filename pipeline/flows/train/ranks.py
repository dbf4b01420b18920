"""The workers of a training: start them together, restart them if one dies, raise their errors unchanged."""

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
_LONGER = 1.2  # Ray's timeout over ours, so that ours comes first, with a message about what is missing
_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # also the delay of a short training's start and end; Ray: 2
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # saves an actor: a preempted node counts as lost
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in the settings mean the same on every rank
}
# words of an error that ended a collective
_LOST = ("gloo", "nccl", "connection reset by peer", "connection closed by peer", "socket", "broken pipe")


class Work(Protocol):
    """The work of one rank: a value that travels.

    It calls `report` with each finished step and a metric worth showing; the first rank's reports count.
    """

    def __call__(self, share: RankSlice, device: str, report: Callable[[int, str], None]) -> None: ...


class LostPeer(Exception):
    """A collective failed: another worker is gone, or the network to it."""


@dataclass(frozen=True)
class RankGroup:
    """Workers that train together.

    Attributes:
        workers: number of ranks.
        cpus: CPUs of each.
        gpus: GPUs of each.
        threads: torch threads of each.
        failures: restarts before the training is given up.
        patience_s: seconds in which all must be placed.
    """

    workers: int
    cpus: float = 1.0
    gpus: float = 0.0
    threads: int = 1
    failures: int = 3
    patience_s: float = 900.0

    def check(self, workers: Workers) -> None:
        """Raise ConfigError if a cluster that cannot grow has no room for them."""
        room = Needs(self.cpus, self.gpus).fit(workers.nodes)
        if room < self.workers and not workers.grows:
            expected = (
                f"room for {self._asked()} (train.workers, cluster.cpus_per_worker, cluster.gpus_per_worker)"
            )
            raise ConfigError(
                "cluster",
                expected,
                f"room for {room} on {len(workers.nodes)} nodes",
                "lower train.workers: a training continues with any number",
            )

    def _asked(self) -> str:
        return f"{self.workers} workers of {self.cpus:g} CPUs and {self.gpus:g} GPUs"

    def run(self, work: Work, bar: Running | None = None) -> None:
        """Run the work on every rank, again from the last checkpoint if one is lost.

        Raises:
            PipelineError: as one of the workers raised it; it is not tried again.
            TransientError: workers died more often than `failures`, or could not be placed within the
                patience.
        """
        for again in range(self.failures + 1):
            found = self._attempt(work, bar)
            if found is None:
                return
            if again < self.failures:
                say(f"a training worker is lost ({found}); all of them start again from the last checkpoint")
        remedy = (
            "free memory (a smaller train.order.batch_rows, train.chunk_rows, more cluster.cpus_per_worker), "
            "then run again: it continues from there"
        )
        raise TransientError(
            "training",
            f"workers that live (train.failures {self.failures})",
            f"{self.failures + 1} losses, the last one: {found}",
            remedy,
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
                failures = failures_of(error)
                if any(isinstance(each, WorkerGroupStartupTimeoutError) for each in failures.values()):
                    raise self._no_room() from None
                return judged(failures, error)
        return None

    def _no_room(self) -> TransientError:
        expected = f"room for {self._asked()} within {self.patience_s:g} s (cluster.patience_s)"
        return TransientError(
            "cluster",
            expected,
            "not all of them",
            "add nodes, end what occupies them, or lower train.workers; then run again: it continues",
        )

    def _trainer(self, work: Work, call: Call, storage: str) -> Any:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        # no restarts by Ray: `run` decides which losses are worth another start
        once = FailureConfig(max_failures=0, controller_failure_limit=0)
        resources = {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})
        return TorchTrainer(
            _work,
            train_loop_config={"work": work, "call": call, "threads": self.threads},
            torch_config=TorchConfig(backend="nccl" if self.gpus else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=self.workers,
                use_gpu=bool(self.gpus),
                resources_per_worker=resources,
                placement_strategy="PACK" if self.gpus else "SPREAD",
            ),
            run_config=RunConfig(
                name="training",
                storage_path=storage,
                failure_config=once,
                worker_runtime_env={"env_vars": self._variables()},
            ),
        )

    def _variables(self) -> dict[str, str]:
        """Return the workers' environment variables: workers on other nodes inherit none from the driver."""
        passed = {
            name: os.environ[name]
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
            if name in os.environ
        }
        return {"OMP_NUM_THREADS": str(self.threads), **passed}

    @contextmanager
    def _storage(self) -> Iterator[str]:
        """Yield a folder for Ray Train, which requires one but stores nothing there.

        Checkpoints are ours, so other nodes need not see it.
        """
        wanted = _ENVIRONMENT | {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": f"{_LONGER * self.patience_s:g}"}
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update({name: value for name, value in wanted.items() if before[name] is None})
        try:
            with tempfile.TemporaryDirectory(prefix="manta-train-") as folder:
                yield folder
        finally:
            for name in (name for name, value in before.items() if value is None):
                os.environ.pop(name, None)


def group_of(train: TrainSettings, cluster: ClusterSettings) -> RankGroup:
    """Return the workers that the settings ask for."""
    return RankGroup(
        train.workers,
        cluster.cpus_per_worker,
        cluster.gpus_per_worker,
        train.threads,
        train.failures,
        cluster.patience_s,
    )


def _work(config: dict[str, Any]) -> None:
    """Run the work of one rank; Ray Train calls it in every worker."""
    import ray.train
    import torch

    torch.set_num_threads(config["threads"])
    context, call = ray.train.get_context(), config["call"]
    share = RankSlice(context.get_world_rank(), context.get_world_size())
    with call.alive(), listening() as heard:
        if share.rank == 0:
            call.begin(0)  # if any rank hangs, the first one waits for it, without progress
        try:
            config["work"](share, str(_device()), partial(_report, call, heard, share.rank))
        except torch.OutOfMemoryError as error:
            remedy = (
                "lower train.chunk_rows or train.order.batch_rows, set train.checkpoint_layers=true, or "
                "train.precision=bfloat16"
            )
            raise ConfigError(
                "train", "a step that fits into the GPU's memory", str(error).splitlines()[0][:200], remedy
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


def _device() -> Any:
    import ray.train.torch

    return ray.train.torch.get_device()


def _thread(work: Callable[[], Any]) -> "Future[Any]":
    """Run `work` in a thread.

    In the main thread Ray Train would handle Ctrl-C, and end with exit code 0.
    """
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
    watch.look()
    future.result()


def failures_of(error: Exception) -> Mapping[int, Exception]:
    """Return the error of each worker, by rank; an error of the whole group is under -1."""
    from ray.train import ControllerError, WorkerGroupError

    if isinstance(error, WorkerGroupError):
        return error.worker_failures
    return {-1: error.controller_failure if isinstance(error, ControllerError) else error}


def judged(failures: Mapping[int, Exception], whole: Exception) -> str:
    """Describe the loss of a worker.

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

    ours = [error for error in failures.values() if isinstance(error, PipelineError)]
    if ours:
        raise ours[0]
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
