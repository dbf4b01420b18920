"""A Ray cluster to work on: an own one on this machine, or the one that the settings name."""

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError, TransientError
from pipeline.log import Stages
from pipeline.settings import ClusterSettings

_OBJECT_STORE = 256 << 20       # bytes: only records and the model's settings pass through it

_NO_ADDRESS = {
    "cluster.address": "set cluster.address to null for a local one", "RAY_ADDRESS": "unset RAY_ADDRESS for a local one", "local Ray": "look at its logs below /tmp/ray",
}


@dataclass(frozen=True)
class Cluster:
    """What the connected cluster has."""

    cpus: int
    gpus: int

    def workers(self, settings: ClusterSettings, work: int) -> int:
        """Encode workers for `work` units: as set, also where a cluster that grows on demand has no room for them yet, else as many as fit; never more than units."""
        if settings.workers is not None:
            return max(1, min(settings.workers, work))
        fit = int(self.gpus / settings.gpus_per_worker) if settings.gpus_per_worker else int(self.cpus / settings.cpus_per_worker)
        if fit < 1:
            wanted = f"{settings.cpus_per_worker:g} CPUs and {settings.gpus_per_worker:g} GPUs for one worker"
            there, remedy = f"{self.cpus} CPUs and {self.gpus} GPUs in the cluster", "lower cluster.cpus_per_worker or cluster.gpus_per_worker"
            raise ConfigError("cluster", wanted, there, remedy)
        return max(1, min(fit, work))

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
    address, named = address_of(settings)
    try:
        own = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE} if address == "local" else {}
        with _own_signals(), _hushed(verbose):
            ray.init(address=address, **own, **noise)
    except ValueError as error:
        found = f"{address!r} ({' '.join(str(error).split())[:200]})"
        raise ConfigError(named, "a Ray address: host:port, auto or local", found, f"correct it, or {_NO_ADDRESS[named]}") from error
    except (ConnectionError, TimeoutError, RuntimeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise TransientError(f"{named} {address}", "a Ray cluster that answers", found, f"start the cluster, or {_NO_ADDRESS[named]}") from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """SIGTERM as it was handled before: Ray puts a handler of its own in place that ends the process without a word."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


def address_of(settings: ClusterSettings) -> tuple[str, str]:
    """(the address to connect to, what named it). Never Ray's own guess: a stale file must not attach us to somebody's cluster."""
    if settings.address:
        return settings.address, "cluster.address"
    inherited = os.environ.get("RAY_ADDRESS", "")           # inside `ray job submit`: the job's own cluster
    if inherited and not inherited.startswith(("http://", "https://")):     # those are for `ray job submit` itself: the dashboard
        return inherited, "RAY_ADDRESS"
    return "local", "local Ray"


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
