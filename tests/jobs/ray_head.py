"""A Ray head that is started with the commands of infra/README.md."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil

from tests.flows.conftest import ROOT
from tests.server import free_port

_PATIENCE_S = 180.0


@dataclass(frozen=True)
class Head:
    """A Ray head that was started with `ray start`: its ports by option, and its directory, in which its user
    has a home directory.
    """

    ports: dict[str, int]
    folder: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.ports['dashboard-port']}"

    @property
    def token(self) -> Path:
        return home_of(self.folder) / ".ray" / "auth_token"

    def environment(self) -> dict[str, str]:
        """Return the environment of a user who has the token and has switched its use on."""
        return environment_of(home_of(self.folder)) | {"RAY_AUTH_MODE": "token"}

    def ray(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program("ray"), *words],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )

    def submit(self, name: str, entrypoint: list[str], *, wait: bool = True) -> int:
        """Run `ray job submit` and return its exit code."""
        options = [
            "--address",
            self.address,
            "--submission-id",
            name,
            "--working-dir",
            ".",
            *([] if wait else ["--no-wait"]),
        ]
        return self.ray("job", "submit", *options, "--", *entrypoint).returncode

    def get(self, path: str) -> Any:
        """Return the dashboard's answer to a request with the token."""
        request = Request(
            f"{self.address}{path}", headers={"Authorization": f"Bearer {self.token.read_text()}"}
        )
        with urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def job(self, name: str) -> dict[str, Any]:
        """Return the facts of the job API about a job."""
        return self.get(f"/api/jobs/{name}")

    def logs(self, name: str) -> str:
        return self.get(f"/api/jobs/{name}/logs")["logs"]

    def answers(self) -> bool:
        try:
            return bool(self.get("/api/version"))
        except (URLError, OSError):
            return False

    @property
    def working_dir(self) -> Path:
        """The node's copy of the working directory that jobs were submitted with."""
        folders = self.folder.glob("session_latest/runtime_resources/working_dir_files/*")
        [copied] = [folder for folder in folders if folder.is_dir()]
        return copied

    def uploaded(self) -> list[Path]:
        """Return the files in the node's copy of the working directory, relative to it."""
        return [
            path.relative_to(self.working_dir)
            for path in self.working_dir.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ]


def program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def home_of(folder: Path) -> Path:
    return folder / "home"


def environment_of(home: Path) -> dict[str, str]:
    """Return the environment of a user with this home directory. Programs of this Python come first, and the
    token and address of any other Ray are left out.
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    ours = {"PATH": path, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_A") and name != "PYTHONPATH"
    }
    return kept | ours


def documented_start() -> str:
    """Return the commands of infra/README.md up to and including the one that starts a head."""
    [block] = [
        each
        for each in re.findall(r"```\n(.*?)```", (ROOT / "infra/README.md").read_text(), re.DOTALL)
        if "ray start --head" in each
    ]
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    last = next(number for number, line in enumerate(lines) if line.startswith("ray start --head"))
    return "\n".join(lines[: last + 1])


def _documented(options: dict[str, str]) -> str:
    """Return the documented commands with options. The last value of a repeated option counts."""
    words = [f"--{name}" if value == "true" else f"--{name}={value}" for name, value in options.items()]
    return f"{documented_start()} {' '.join(words)}"


@contextlib.contextmanager
def ray_head(start: Callable[[dict[str, str]], str] = _documented) -> Iterator[Head]:
    """Start a head on free ports, by default as documented. Unlike there it has CPUs, because it is the only
    node.

    Args:
        start: returns a script that starts the head with these options of `ray start`.
    """
    folder = Path(tempfile.mkdtemp(prefix="manta-"))  # short: Ray puts sockets below it
    names = (
        "port",
        "dashboard-port",
        "dashboard-agent-listen-port",
        "ray-client-server-port",
        "metrics-export-port",
    )
    started = Head({name: free_port() for name in names}, folder)
    home_of(folder).mkdir()
    options = {"temp-dir": str(folder), "num-cpus": "2", "object-store-memory": "150000000", "block": "true"}
    options |= {name: str(port) for name, port in started.ports.items()}
    with open(folder / "head.log", "w") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"set -e\n{start(options)}"],
            env=environment_of(home_of(folder)),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(started.answers, process)
        yield started
    finally:
        _kill(process, folder)


def wait_until(done: Callable[[], object], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, "the head ended"
        time.sleep(0.05)


def _kill(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill the head and all processes of its directory. `ray stop` would end every Ray of the machine."""
    ours = psutil.Process(process.pid).children(recursive=True)
    ours += [
        each
        for each in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in each.info["cmdline"] or ())
    ]
    for pid in {process.pid, *(each.pid for each in ours)}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)
