"""Connect to workers: a Ray cluster that is started here or named in the settings, or local workers."""

import contextlib
import importlib
import importlib.machinery
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, TransientError
from pipeline.flows.workers.address import NO_ADDRESS, TOKEN, address_of, check_answers, no_answer
from pipeline.flows.workers.heartbeat import expect, open_board
from pipeline.flows.workers.local import LocalWorkers
from pipeline.flows.workers.ray_workers import RayWorkers
from pipeline.flows.workers.room import addable, nodes_alive
from pipeline.flows.workers.workers import Workers
from pipeline.log import Stages, give_up
from pipeline.settings import ClusterSettings

_LOOK_S = 0.5
_OBJECT_STORE = 256 << 20  # bytes: only records and model settings pass through it
# with Ray's default of 1,000 every stage of a short night waits for new processes
_PROCESSES = {"idle_worker_killing_time_threshold_ms": 10_000}

# local workers of the enclosing block: like Ray, they are connected once per process
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
    settings: ClusterSettings, stages: Stages, *, verbose: bool = False, local: LocalWorkers | None = None
) -> Iterator[Workers]:
    """Connect to workers for the duration of the block: a Ray cluster, or `local` workers without Ray.

    Local workers of an enclosing block are reused, and so is an existing connection to Ray. A Ray that was
    started here is stopped afterwards.
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
        quiet(verbose)
        import ray

        mine = not ray.is_initialized()
        if mine:
            _start(settings, verbose)
    try:
        with _guarded() if mine else contextlib.nullcontext():
            expect(settings.patience_s, settings.wait_s)
            nodes = tuple(node for _, node in nodes_alive().values())
            yield RayWorkers(
                nodes,
                bool(addable()),
                ray.available_resources().get("CPU", 0) >= sum(node.cpus for node in nodes),
                board=open_board(),
            )
    finally:
        if mine:
            ray.shutdown()


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """Abort this process when the raylet or the GCS server that it started is gone.

    Ray itself would end the process, 10 to 60 seconds later, with exit code 1 and without a message.
    """
    from ray._private.worker import _global_node as node

    over = threading.Event()

    def follow() -> None:
        while not over.wait(_LOOK_S):
            if gone := sorted({kind for kind, _ in node.dead_processes()} & {"raylet", "gcs_server"}):
                node.kill_all_processes(check_alive=False, allow_graceful=False)
                give_up(
                    TransientError(
                        "local Ray",
                        "its processes to run",
                        f"none of {' and '.join(gone)}",
                        "free memory, or see what killed them; then run again: finished units are kept",
                    )
                )
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _start(settings: ClusterSettings, verbose: bool) -> None:
    import ray

    address, named = address_of(settings)
    _check_directory()
    check_answers(address, named, settings.patience_s)
    options: dict[str, Any] = {
        "address": address,
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
    }
    if address == "local":
        _keep_token()
        options |= {
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE,
            "_system_config": _PROCESSES,
        }
    try:
        with (
            _hushed(verbose) as reopen,
            _within(settings.patience_s, address, named, reopen),
            _own_signals(),
        ):
            ray.init(**options)
    except ValueError as error:
        raise ConfigError(
            named,
            "a Ray address: host:port, auto or local",
            f"{address!r} ({' '.join(str(error).split())[:200]})",
            f"correct it, or {NO_ADDRESS[named]}",
        ) from error
    except ray.exceptions.AuthenticationError as error:
        raise ConfigError(
            f"{named} {address}",
            "a token of that cluster",
            " ".join(str(error).split())[:200],
            f"set {TOKEN}",
        ) from error
    except Exception as error:
        # Ray raises a plain Exception for a node that is not up in time
        if (
            not isinstance(error, (ConnectionError, TimeoutError, RuntimeError))
            and type(error) is not Exception
        ):
            raise
        raise no_answer(address, named, f"{type(error).__name__}: {error}") from error


def _keep_token() -> None:
    """Make ~/.ray private to this user: Ray writes the token of local clusters there, readable by all."""
    with contextlib.suppress(OSError):  # without a home directory of ours Ray writes no token there either
        folder = Path.home() / ".ray"
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)


@contextlib.contextmanager
def _within(patience_s: float, address: str, named: str, reopen: Callable[[], None]) -> Iterator[None]:
    """Abort, from a thread, when the block takes longer: Ray waits forever for a head that hangs.

    Args:
        patience_s: time limit.
        address: of the cluster, for the message.
        named: setting that names the address.
        reopen: opens standard error, where the error is written.
    """

    def end() -> None:
        reopen()
        give_up(no_answer(address, named, f"no answer within {patience_s:g} s (cluster.patience_s)"))

    timer = threading.Timer(patience_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # `end`, if under way, needs standard error as it is now


def _check_directory() -> None:
    """Raise ConfigError if the working directory has another package called pipeline.

    Ray's workers search the working directory first.
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
            "no other package called pipeline, since Ray's workers import from here first",
            str(next(iter(folders), found.origin)),
            "run in another directory, or rename it",
        )


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the SIGTERM handler after the block: Ray's own ends the process without a message."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


def is_local(settings: ClusterSettings) -> bool:
    """Return whether all work runs on this machine and none of it on a GPU."""
    return address_of(settings)[0] == "local" and not settings.gpus_per_worker


def quiet(verbose: bool) -> None:
    """Turn off Ray's progress bars, notices and usage statistics, unless `verbose`.

    Call it before `import ray`, which reads the environment.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if verbose:
        return
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # our restarts are counted and limited: see watch.py
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "infinite retries remaining")
    # the future default of Ray, without its warning
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    warnings.filterwarnings("ignore", module="ray")
    importlib.import_module("ray.data")  # configures its loggers, so ours come after it
    for name in ("ray", "ray.data", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _hushed(verbose: bool) -> Iterator[Callable[[], None]]:
    """Discard standard error during the block, where Ray's native part prints its log level.

    Failures are raised, not printed. Yields a function that opens standard error earlier, from any thread.
    """
    if verbose:
        yield lambda: None
        return
    sys.stderr.flush()
    kept, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)

    def reopen() -> None:
        os.dup2(kept, 2)

    try:
        os.dup2(devnull, 2)
        yield reopen
    finally:
        reopen()
        os.close(kept)
        os.close(devnull)
