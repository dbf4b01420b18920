"""Processes of a night under fire: they are found by a token in their environment, killed by kind, and all
ended with their night.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

TOKEN = "MANTA_CHAOS_TOKEN"
_SIGNS = {
    "driver": "-m jobs.",
    "apart": "-m pipeline.flows.encode.isolate",
    "child": "multiprocessing.spawn",
    "raylet": "raylet/raylet",
    "gcs": "gcs/gcs_server",
}


@dataclass(frozen=True)
class Found:
    """One process of a night.

    Attributes:
        pid: process id.
        kind: driver, child (of a night without Ray), apart (a child that encodes single texts), worker,
            raylet, agent (a raylet ends when one of its agents does), gcs, or other.
        born: time of its start, which distinguishes it from a later process with this id.
    """

    pid: int
    kind: str
    born: float

    def kill(self) -> bool:
        """Send SIGKILL, but never to another process that reuses the pid. Returns whether it was sent."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if process.create_time() == self.born and process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
                return True
        return False


def processes(token: str) -> list[Found]:
    """List all running processes that have the token, inherited from the process that got it first."""
    found, wanted = [], f"{TOKEN}={token}".encode()
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        with contextlib.suppress(OSError, psutil.Error):
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                process = psutil.Process(int(directory.name))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(Found(process.pid, _kind(process.cmdline()), process.create_time()))
    return found


def _kind(command: list[str]) -> str:
    line = " ".join(command)
    if command and command[0].startswith("ray::"):
        return "agent" if "Agent" in command[0] else "worker"
    return next((kind for kind, sign in _SIGNS.items() if sign in line), "other")


def end_all(token: str, patience_s: float) -> list[Found]:
    """Wait for all processes with the token to end, then kill the others. Returns the killed ones."""
    deadline = time.monotonic() + patience_s
    while (left := processes(token)) and time.monotonic() < deadline:
        time.sleep(0.1)
    ended = left
    while left:
        for process in left:
            process.kill()
        time.sleep(0.05)
        left = processes(token)
    return ended
