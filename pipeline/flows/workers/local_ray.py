"""Start Ray on this machine, watch its processes, and end them.

This is apart from `cluster`, because it uses Ray's internals.
"""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import TransientError
from pipeline.flows.workers import ray_internals
from pipeline.flows.workers.processes import abort_on_error, children_of, kill_process
from pipeline.store.files.disk import translate_disk_errors

_OBJECT_STORE_BYTES = 256 << 20  # enough, since only records and model settings pass through it
_SHARED_MEMORY = Path("/dev/shm")  # where Ray stores objects if there is room for them; macOS has none
_POLL_S = 0.5  # time between two checks of Ray's processes
_EXIT_S = 5.0  # time within which Ray's workers have to exit by themselves
_EXIT_POLL_S = 0.05  # time between two checks whether the workers have exited


def options() -> dict[str, Any]:
    """Return arguments of ray.init, which writes into them."""
    return {
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "_system_config": dict(ray_internals.LOCAL_OPTIONS),
    }


def make_token_folder_private() -> None:
    """Make ~/.ray readable by this user only: Ray stores the token there, readable by all."""
    with contextlib.suppress(OSError):  # Ray cannot write its token there either
        folder = Path.home() / ".ray"
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)


def check_shared_memory() -> None:
    """Raise an error if Ray cannot write to /dev/shm: Ray would try for half a minute, and not say why."""
    if _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free >= _OBJECT_STORE_BYTES:
        with translate_disk_errors(str(_SHARED_MEMORY)):
            tempfile.TemporaryFile(dir=_SHARED_MEMORY).close()


@contextlib.contextmanager
def abort_if_it_dies() -> Iterator[None]:
    """Abort this process with a message if the raylet or the GCS server that it started ends.

    Ray itself would end the process 10 to 60 seconds later, with exit code 1 and without a message.
    """

    def end_if_one_died() -> TransientError | None:
        if not (ended := sorted(ray_internals.dead_processes() & {"raylet", "gcs_server"})):
            return None
        ray_internals.kill_all_processes()
        return TransientError(
            "local Ray",
            "its processes to run",
            f"{' and '.join(ended)} ended",
            "make more memory available, or see what killed them; then run again: finished units are kept",
        )

    with abort_on_error(end_if_one_died, _POLL_S):
        yield


def shut_down() -> None:
    """Disconnect from Ray. A Ray that this process started ends, with its workers.

    Now and then a worker never exits, because one of Ray's exit handlers waits for a lock that it holds
    itself. Such a worker would keep its memory, so it is killed.
    """
    import ray

    workers = [child for raylet in ray_internals.raylet_pids() for child in children_of(raylet)]
    try:
        ray.shutdown()
        deadline = time.monotonic() + _EXIT_S
        while any(worker.runs() for worker in workers) and time.monotonic() < deadline:
            time.sleep(_EXIT_POLL_S)
    finally:
        for worker in workers:
            kill_process(worker.pid, worker.start_ticks)
