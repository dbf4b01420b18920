"""Connect to workers: on a Ray cluster that exists or is started here, or local ones without Ray."""

import contextlib
import importlib
import importlib.machinery
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.flows.workers import local_ray
from pipeline.flows.workers.address import TOKEN_SETTINGS, ClusterAddress
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.local import LocalWorkers
from pipeline.flows.workers.lost_cluster import abort_if_cluster_dies
from pipeline.flows.workers.nodes import addable_nodes, nodes_alive, take_joined
from pipeline.flows.workers.ray_internals import ALWAYS_VARIABLES, QUIET_VARIABLES, stop_log_monitor
from pipeline.log import Stages, end_process
from pipeline.settings import ClusterSettings
from pipeline.store.files.base import Store

# Local workers of the enclosing block of `connect`. Like Ray, they are connected once per process.
_local: LocalWorkers | None = None


@contextlib.contextmanager
def local_workers(wanted: bool, patience_s: float) -> Iterator[LocalWorkers | None]:
    """Start local workers and stop them after the block. Yields None if not `wanted`.

    Local workers of an enclosing block are reused.
    """
    if _local is not None:
        yield _local
        return
    if not wanted:
        yield None
        return
    local = LocalWorkers(patience_s)
    try:
        yield local
    finally:
        local.close()


@contextlib.contextmanager
def connect(
    settings: ClusterSettings,
    stages: Stages,
    *,
    verbose: bool = False,
    local: LocalWorkers | None = None,
    stores: Mapping[str, Store] | None = None,
) -> Iterator[Workers]:
    """Connect to workers for the duration of the block: a Ray cluster, or `local` workers without Ray.

    Local workers of an enclosing block are reused, and so is an existing connection to Ray. A connection that
    this call makes is closed after the block, and a Ray that it starts is shut down.

    Args:
        stores: stores that the workers read and write, by the setting that names each. Every node of a
            cluster that was not started here is asked whether it reaches them; None: no node is asked.

    Raises:
        ConfigError: a node cannot do the work, see `check_nodes`.
    """
    global _local
    if local := local or _local:
        outer, _local = _local, local
        try:
            yield local
        finally:
            _local = outer
        return
    with stages("cluster"):
        silence_ray(verbose)
        import ray

        from pipeline.flows.workers.check_nodes import check_nodes
        from pipeline.flows.workers.heartbeat import open_board, set_patience
        from pipeline.flows.workers.ray_workers import RayWorkers

        connects_here = not ray.is_initialized()
        if connects_here:
            _connect_to_ray(settings, verbose)
    try:
        with _abort_if_ray_dies(settings) if connects_here else contextlib.nullcontext():
            set_patience(settings.patience_s, settings.wait_s)
            if connects_here and stores is not None and not ClusterAddress.of(settings).is_local:
                with stages("nodes"):
                    check_nodes(stores)
            alive = nodes_alive()
            if connects_here:
                take_joined(alive)  # nodes that join later are reported if they cannot do the work
            nodes = tuple(node for _, node in alive.values())
            free_cpus = ray.available_resources().get("CPU", 0)
            yield RayWorkers(
                nodes,
                grows=bool(addable_nodes()),
                idle=free_cpus >= sum(node.cpus for node in nodes),
                board=open_board(),
            )
    finally:
        if connects_here:
            local_ray.shut_down()


def _abort_if_ray_dies(settings: ClusterSettings) -> contextlib.AbstractContextManager[None]:
    """Abort this process with a message if the Ray that it is connected to ends."""
    cluster = ClusterAddress.of(settings)
    return local_ray.abort_if_it_dies() if cluster.is_local else abort_if_cluster_dies(cluster)


def _ray_options(cluster: ClusterAddress, verbose: bool) -> dict[str, Any]:
    """Return the arguments of ray.init."""
    options: dict[str, Any] = {
        "address": cluster.address,
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
    }
    return options | local_ray.options() if cluster.is_local else options


def _connect_to_ray(settings: ClusterSettings, verbose: bool) -> None:
    """Connect to the cluster of the settings, or start a local one."""
    import ray

    cluster = ClusterAddress.of(settings)
    _check_directory()
    cluster.check_answers(settings.patience_s)
    if cluster.is_local:
        local_ray.make_token_folder_private()
        local_ray.check_shared_memory()
    try:
        with (
            _discard_stderr(verbose) as reopen,
            _abort_after(settings.patience_s, cluster, reopen),
            _restore_sigterm(),
        ):
            ray.init(**_ray_options(cluster, verbose))
            if cluster.is_local and not verbose:
                stop_log_monitor()
    except ValueError as error:
        raise ConfigError(
            cluster.setting,
            "a Ray address: host:port, auto or local",
            f"{cluster.address!r} ({' '.join(str(error).split())[:200]})",
            f"correct it, or {cluster.remedy}",
        ) from error
    except ray.exceptions.AuthenticationError as error:
        raise ConfigError(
            str(cluster),
            "a token of that cluster",
            " ".join(str(error).split())[:200],
            f"set {TOKEN_SETTINGS}",
        ) from error
    except Exception as error:
        # Ray raises a plain Exception for a node that is not up in time
        if (
            not isinstance(error, (ConnectionError, TimeoutError, RuntimeError))
            and type(error) is not Exception
        ):
            raise
        raise cluster.no_answer_error(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _abort_after(
    patience_s: float, cluster: ClusterAddress, reopen_stderr: Callable[[], None]
) -> Iterator[None]:
    """Abort the process if the block takes longer: Ray waits forever for a head that hangs.

    Args:
        patience_s: time limit.
        cluster: the cluster, for the message.
        reopen_stderr: opens standard error again, so that the error can be written.
    """

    def end() -> None:
        reopen_stderr()
        end_process(cluster.no_answer_error(f"no answer within {patience_s:g} s (cluster.patience_s)"))

    timer = threading.Timer(patience_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # `end`, if it runs already, must write before standard error changes again


def _check_directory() -> None:
    """Raise ConfigError if the working directory contains another package called pipeline.

    Ray's workers search the working directory first, so they would import that one.
    """
    directory = os.getcwd()
    found = importlib.machinery.PathFinder.find_spec("pipeline", [directory])
    if found is None:
        return
    folders = found.submodule_search_locations or ()
    this_file = Path("flows", "workers", Path(__file__).name)
    if not any(Path(folder, this_file).is_file() for folder in folders):
        raise ConfigError(
            directory,
            "no other package called pipeline, which Ray's workers would import instead of this one",
            str(next(iter(folders), found.origin)),
            "run in another directory, or rename that package",
        )


@contextlib.contextmanager
def _restore_sigterm() -> Iterator[None]:
    """Restore the SIGTERM handler after the block: the handler of Ray ends the process without a message."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


def is_local(settings: ClusterSettings) -> bool:
    """Return whether all work runs on this machine and none of it on a GPU."""
    return ClusterAddress.of(settings).is_local and not settings.gpus_per_worker


def silence_ray(verbose: bool) -> None:
    """Turn off usage statistics, messages that Manta's own replace and, unless `verbose`, all notices of Ray.

    Call it before `import ray`, which reads the environment.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for name, value in (ALWAYS_VARIABLES if verbose else ALWAYS_VARIABLES | QUIET_VARIABLES).items():
        os.environ.setdefault(name, value)
    if verbose:
        return
    warnings.filterwarnings("ignore", module="ray")
    importlib.import_module("ray.data")  # its import sets the levels of the loggers, so import it first
    for name in ("ray", "ray.data", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _discard_stderr(verbose: bool) -> Iterator[Callable[[], None]]:
    """Discard standard error during the block, unless `verbose`: Ray prints its log level there.

    Nothing else is lost, since failures are raised. Yields a function that opens standard error again before
    the end of the block, and that any thread may call.
    """
    if verbose:
        yield lambda: None
        return
    sys.stderr.flush()
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)

    def reopen() -> None:
        os.dup2(stderr, 2)

    try:
        os.dup2(devnull, 2)
        yield reopen
    finally:
        reopen()
        os.close(stderr)
        os.close(devnull)
