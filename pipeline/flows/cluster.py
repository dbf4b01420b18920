"""A Ray cluster to work on: an own one on this machine, or the one that the settings name."""

import contextlib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError, TransientError
from pipeline.log import Stages
from pipeline.settings import ClusterSettings

_OBJECT_STORE = 256 << 20       # bytes: only records and the model's settings pass through it


@dataclass(frozen=True)
class Cluster:
    """What the connected cluster has."""

    cpus: int
    gpus: int

    def workers(self, settings: ClusterSettings, work: int) -> int:
        """Encode workers for `work` units: as set, else as many as fit; never more than units."""
        fit = int(self.gpus / settings.gpus_per_worker) if settings.gpus_per_worker else int(self.cpus / settings.cpus_per_worker)
        if fit < 1:
            wanted = f"{settings.cpus_per_worker:g} CPUs and {settings.gpus_per_worker:g} GPUs for one worker"
            there, remedy = f"{self.cpus} CPUs and {self.gpus} GPUs in the cluster", "lower cluster.cpus_per_worker or cluster.gpus_per_worker"
            raise ConfigError("cluster", wanted, there, remedy)
        return max(1, min(settings.workers or fit, work))

    def index_workers(self, settings: ClusterSettings, work: int) -> int:
        """Workers for shards of an index."""
        return max(1, min(settings.index_workers or self.cpus, work))


@contextlib.contextmanager
def connect(settings: ClusterSettings, stages: Stages, *, verbose: bool = False) -> Iterator[Cluster]:
    """The cluster, connected; disconnected at the end, and stopped where it was started here. An already connected Ray is used as it is."""
    with stages("cluster"):
        quiet(verbose)
        import ray

        mine = not ray.is_initialized()
        if mine:
            _start(settings, verbose)
    try:
        total = ray.cluster_resources()
        yield Cluster(cpus=max(1, int(total.get("CPU", 1))), gpus=int(total.get("GPU", 0)))
    finally:
        if mine:
            ray.shutdown()


def _start(settings: ClusterSettings, verbose: bool) -> None:
    import ray

    noise: dict[str, Any] = {"log_to_driver": verbose, "logging_level": logging.INFO if verbose else logging.ERROR}
    # inside `ray job submit` the job's own cluster is meant; elsewhere a stale file must never attach us to somebody's
    address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
    try:
        own = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE} if address == "local" else {}
        with _hushed(verbose):
            ray.init(address=address, **own, **noise)
    except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
        remedy = "start the cluster, or set cluster.address to null for a local one"
        raise TransientError(f"cluster {address}", "a Ray cluster that answers", f"{type(error).__name__}: {error}", remedy) from error


def quiet(verbose: bool) -> None:
    """Ray's own progress bars, notices and statistics off, unless asked for. Before `import ray`, which reads the environment then."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if verbose:
        return
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")      # what Ray will do by itself, without its warning
    warnings.filterwarnings("ignore", module="ray")
    importlib.import_module("ray.data")                                    # sets its loggers up: ours after that
    for name in ("ray", "ray.data", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _hushed(verbose: bool) -> Iterator[None]:
    """Standard error closed for the moment: the native part of Ray announces its log level there. What fails is raised, not printed."""
    if verbose:
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
