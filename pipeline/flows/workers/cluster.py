"""A Ray cluster to work on: an own one on this machine, or the one that the settings name."""

import contextlib
import importlib
import importlib.machinery
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, TransientError
from pipeline.flows.workers.heartbeat import expect, open_board
from pipeline.flows.workers.local import LocalWorkers
from pipeline.flows.workers.ray_workers import RayWorkers
from pipeline.flows.workers.room import addable, nodes_alive
from pipeline.flows.workers.workers import Workers
from pipeline.log import Stages, give_up
from pipeline.settings import ClusterSettings

_LOOK_S = 0.5
_ANSWER_S = 10.0  # to connect to a cluster
_SILENT_S = 60.0  # for the head to say its first word; a busy one needs more than a moment
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
    (0, 0, 0, 4, 0, 0, 0, 0, 0)
)  # an HTTP/2 client's first words (RFC 9113, 3.4), which a gRPC server answers
_OBJECT_STORE = 256 << 20  # bytes: only records and the model's settings pass through it
_PROCESSES = {
    "idle_worker_killing_time_threshold_ms": 10_000
}  # at Ray's own 1,000 each stage of a short night waits for processes of its own

_NO_ADDRESS = {
    "cluster.address": "set cluster.address to null for a local one",
    "RAY_ADDRESS": "unset RAY_ADDRESS for a local one",
    "local Ray": "look at its logs below /tmp/ray",
}


_TOKEN = (
    "RAY_AUTH_MODE=token and the cluster's token in ~/.ray/auth_token, RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN"
)


_local: LocalWorkers | None = (
    None  # those of the enclosing block, as Ray itself is connected once per process
)


@contextlib.contextmanager
def _use(local: LocalWorkers) -> Iterator[None]:
    global _local
    outer, _local = _local, local
    try:
        yield
    finally:
        _local = outer


@contextlib.contextmanager
def local_workers(wanted: bool, patience_s: float) -> Iterator[LocalWorkers | None]:
    """Start local workers and end them after the block; None if not `wanted`. Those of an enclosing block are used instead."""
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
    """Connect to workers for the duration of the block: a Ray cluster, or `local` workers without any Ray.

    Local workers of an enclosing block are used instead, as is a Ray that is already connected. A Ray that was
    started here is stopped afterwards.
    """
    if local := local or _local:
        with _use(local):
            yield local
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
            idle = ray.available_resources().get("CPU", 0) >= sum(node.cpus for node in nodes)
            yield RayWorkers(nodes, bool(addable()), idle, board=open_board())
    finally:
        if mine:
            ray.shutdown()


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """Gives up when the raylet or the GCS server that this process has started is gone.

    Ray itself would end the process, 10 to 60 seconds later, with exit code 1 and without a word.
    """
    from ray._private.worker import _global_node as node

    over = threading.Event()

    def follow() -> None:
        while not over.wait(_LOOK_S):
            if gone := sorted({kind for kind, _ in node.dead_processes()} & {"raylet", "gcs_server"}):
                node.kill_all_processes(check_alive=False, allow_graceful=False)
                remedy = (
                    "look for memory that is short, or who ended it; then run again: finished units are kept"
                )
                give_up(
                    TransientError(
                        "local Ray", "its processes to run", f"none of {' and '.join(gone)}", remedy
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

    noise: dict[str, Any] = {
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
    }
    address, named = address_of(settings)
    _check_directory()
    _check_answers(address, named, settings.patience_s)
    if address == "local":
        _keep_token()
    try:
        own = (
            {"include_dashboard": False, "object_store_memory": _OBJECT_STORE, "_system_config": _PROCESSES}
            if address == "local"
            else {}
        )
        with (
            _hushed(verbose) as reopen,
            _within(settings.patience_s, address, named, reopen),
            _own_signals(),
        ):
            ray.init(address=address, **own, **noise)
    except ValueError as error:
        found = f"{address!r} ({' '.join(str(error).split())[:200]})"
        raise ConfigError(
            named, "a Ray address: host:port, auto or local", found, f"correct it, or {_NO_ADDRESS[named]}"
        ) from error
    except ray.exceptions.AuthenticationError as error:
        found = " ".join(str(error).split())[:200]
        raise ConfigError(f"{named} {address}", "a token of that cluster", found, f"set {_TOKEN}") from error
    except Exception as error:
        if not (
            isinstance(error, (ConnectionError, TimeoutError, RuntimeError)) or type(error) is Exception
        ):  # Ray's word for a node that is not up in time
            raise
        found = f"{type(error).__name__}: {error}"
        raise _no_answer(address, named, found) from error


def _keep_token() -> None:
    """Close ~/.ray to other users of this machine: Ray writes the token of local clusters there, readable by all."""
    with contextlib.suppress(OSError):  # no home, or not ours: then Ray writes none there either
        folder = Path.home() / ".ray"
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)


def _no_answer(address: str, named: str, found: str) -> TransientError:
    token = "" if address == "local" else f"set {_TOKEN} if it asks for one, "
    remedy = f"check host and port, start the cluster, {token}or {_NO_ADDRESS[named]}"
    return TransientError(f"{named} {address}", "a Ray cluster that answers", found, remedy)


@contextlib.contextmanager
def _within(patience_s: float, address: str, named: str, reopen: Callable[[], None]) -> Iterator[None]:
    """Give up, from a thread, when the block takes longer: Ray waits for ever for a head that hangs.

    Args:
        reopen: opens standard error, where the error is written.
    """

    def end() -> None:
        reopen()
        give_up(_no_answer(address, named, f"no answer within {patience_s:g} s (cluster.patience_s)"))

    timer = threading.Timer(patience_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # an end under way needs standard error as it is now


def _check_directory() -> None:
    """ConfigError if the working directory has another package called pipeline: Ray's workers look there first."""
    directory = os.getcwd()
    found = importlib.machinery.PathFinder.find_spec("pipeline", [directory])
    folders = found.submodule_search_locations or () if found is not None else ()
    if found is not None and not any(
        Path(folder, "flows", "workers", Path(__file__).name).is_file() for folder in folders
    ):
        where = next(iter(folders), found.origin)
        raise ConfigError(
            directory,
            "no other package called pipeline, since Ray's workers import from here first",
            str(where),
            "run in another directory, or rename it",
        )


def _check_answers(address: str, named: str, patience_s: float) -> None:
    """TransientError for a host:port at which nobody listens, or one that listens and is silent: Ray would wait many minutes, or for ever, without a word."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S)
    except (OSError, OverflowError) as error:
        raise _no_answer(address, named, str(error)) from None
    silent_s = min(_SILENT_S, patience_s)
    with (
        connection,
        contextlib.suppress(ConnectionError),
    ):  # one that closes the connection is no gRPC server without TLS: Ray knows what it wants
        connection.settimeout(silent_s)
        connection.sendall(_GREETING)
        try:
            connection.recv(1)
        except TimeoutError:
            raise _no_answer(
                address, named, f"a port that accepts connections and says nothing for {silent_s:g} s"
            ) from None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """SIGTERM as it was handled before: Ray puts a handler of its own in place that ends the process without a word."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


def is_local(settings: ClusterSettings) -> bool:
    """Whether the work is this machine's, and none of it a GPU's."""
    return address_of(settings)[0] == "local" and not settings.gpus_per_worker


def address_of(settings: ClusterSettings) -> tuple[str, str]:
    """(the address to connect to, what named it). Never Ray's own guess: a stale file must not attach us to somebody's cluster."""
    if settings.address:
        return settings.address, "cluster.address"
    inherited = os.environ.get("RAY_ADDRESS", "")  # inside `ray job submit`: the job's own cluster
    if inherited and not inherited.startswith(
        ("http://", "https://")
    ):  # those are for `ray job submit` itself: the dashboard
        return inherited, "RAY_ADDRESS"
    return "local", "local Ray"


def quiet(verbose: bool) -> None:
    """Ray's own progress bars, notices and statistics off, unless asked for. Before `import ray`, which reads the environment then."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if verbose:
        return
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault(
        "RAY_DEDUP_LOGS_SKIP_REGEX", "infinite retries remaining"
    )  # ours are counted, and end: see watch.py
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # what Ray will do by itself, without its warning
    warnings.filterwarnings("ignore", module="ray")
    importlib.import_module("ray.data")  # sets its loggers up: ours after that
    for name in ("ray", "ray.data", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _hushed(verbose: bool) -> Iterator[Callable[[], None]]:
    """Close standard error for the duration of the block: the native part of Ray announces its log level there.
    Errors are raised, not printed. Yields a function that opens it earlier, from any thread.
    """
    if verbose:
        yield lambda: None
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)

    def reopen() -> None:
        os.dup2(kept, 2)

    try:
        os.dup2(nowhere, 2)
        yield reopen
    finally:
        reopen()
        os.close(kept)
        os.close(nowhere)
