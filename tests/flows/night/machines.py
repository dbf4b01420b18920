"""Three Ray nodes in network namespaces of one machine, connected by a bridge, with disks made of mounts."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.conftest import ROOT

PATIENCE_S = 180.0
NODES = 3
HEAD, PORT, S3_PORT = "10.77.0.1", 6379, 5000
_BIN = Path(sys.executable).parent
_EACH = ["--num-cpus=1", "--object-store-memory=80000000", "--block"]  # options of `ray start` on every node


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def why_not() -> str | None:
    """Return the reason why this machine cannot make namespaces; None if it can."""
    name = f"manta-{os.getpid()}-try"
    if shutil.which("ip") is None or shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "the commands ip, unshare and nsenter are needed (iproute2, util-linux)"
    try:
        run("ip", "netns", "add", name)
        run("ip", "netns", "exec", name, "unshare", "-m", "-u", "mount", "-t", "tmpfs", "none", "/mnt")
        run("ip", "-n", name, "link", "add", "br0", "type", "bridge")
    except subprocess.CalledProcessError as error:
        return f"this machine refuses namespaces: {' '.join(error.cmd)}: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None


@dataclass
class Machines:
    """Three nodes and a switch between them.

    Only the first node sees the directory `disk`; `scratch` is one path, with another directory on every
    node.
    """

    disk: Path
    scratch: Path
    logs: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def name(self, number: int) -> str:
        return f"manta-{os.getpid()}-{number}"

    def address(self, number: int) -> str:
        return f"10.77.0.{number}"

    @property
    def environment(self) -> dict[str, str]:
        access = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY_", "AWS_", "MANTA_"))
        }
        own = {
            "MANTA_CACHE": str(self.scratch / "cache"),
            "TMPDIR": str(self.scratch),
            "PYTHONPATH": str(ROOT),
            "MANTA_LOG": "json",
            "RAY_AUTH_MODE": "disabled",
        }
        return (
            kept
            | access
            | own
            | {"AWS_ENDPOINT_URL": f"http://{HEAD}:{S3_PORT}", "PATH": f"{_BIN}:{os.environ['PATH']}"}
        )

    def build(self) -> None:
        """Make the network, then start Ray on every node and the S3 server on the first."""
        run("ip", "netns", "add", self.name(0))
        run("ip", "-n", self.name(0), "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.name(0), "link", "set", "br0", "up")
        for number in range(1, NODES + 1):
            self._connect(number)
        self._boot(
            1,
            [
                "ray",
                "start",
                "--head",
                f"--node-ip-address={HEAD}",
                f"--port={PORT}",
                "--include-dashboard=false",
                *_EACH,
            ],
        )
        self.started.append(
            self.inside(
                [sys.executable, "-m", "moto.server", "-H", HEAD, "-p", str(S3_PORT)], subprocess.DEVNULL
            )
        )
        self._wait_for(1)
        for number in range(2, NODES + 1):
            self.join(number)
        self._wait_for_s3()

    def join(self, number: int) -> None:
        """Start Ray on a node other than the first, also after a kill, and wait until it has joined."""
        self._boot(
            number,
            ["ray", "start", f"--address={HEAD}:{PORT}", f"--node-ip-address={self.address(number)}", *_EACH],
        )
        self._wait_for(number)

    def _connect(self, number: int) -> None:
        name = self.name(number)
        run("ip", "netns", "add", name)
        hosts = Path("/etc/netns", name, "hosts")
        hosts.parent.mkdir(parents=True, exist_ok=True)
        hosts.write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{self.address(node)} node{node}\n" for node in range(1, NODES + 1))
        )
        run(
            "ip",
            "link",
            "add",
            "eth0",
            "netns",
            name,
            "type",
            "veth",
            "peer",
            "name",
            f"port{number}",
            "netns",
            self.name(0),
        )
        run("ip", "-n", self.name(0), "link", "set", f"port{number}", "master", "br0", "up")
        run("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", name, "link", "set", device, "up")

    def _boot(self, number: int, command: list[str]) -> None:
        """Start a Ray node with its own /tmp/ray, /dev/shm and scratch directory.

        Only the first node sees the files of `disk`.
        """
        own = ["/tmp/ray", "/dev/shm", str(self.scratch), *([str(self.disk)] if number > 1 else [])]
        mounts = "; ".join(f"mount -t tmpfs none {folder}" for folder in own)
        script = f'set -e; mount --make-rprivate /; hostname node{number}; {mounts}; exec "$@"'
        Path("/tmp/ray").mkdir(exist_ok=True)
        whole = [
            "ip",
            "netns",
            "exec",
            self.name(number),
            "unshare",
            "-m",
            "-u",
            "bash",
            "-c",
            script,
            "bash",
            *command,
        ]
        with self._log(number).open("w") as log:
            self.started.append(
                subprocess.Popen(
                    whole, stdout=log, stderr=subprocess.STDOUT, text=True, env=self.environment, cwd=ROOT
                )
            )

    def _log(self, number: int) -> Path:
        return self.logs / f"node{number}.log"

    def _wait_for(self, number: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while "Ray runtime started" not in self._log(number).read_text():
            assert time.monotonic() < deadline, self._log(number).read_text()
            time.sleep(0.1)

    def _wait_for_s3(self) -> None:
        connect = f"import socket; socket.create_connection(({HEAD!r}, {S3_PORT}))"
        deadline = time.monotonic() + PATIENCE_S
        while self.inside([sys.executable, "-c", connect], subprocess.DEVNULL).wait() != 0:
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.1)

    def inside(self, command: list[str], output: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start a process on the first node."""
        enter = ["nsenter", "-t", str(self.started[0].pid), "-m", "-u", "-n", f"--wd={ROOT}"]
        return subprocess.Popen(
            [*enter, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            text=True,
            env=self.environment,
        )

    def pids(self, number: int) -> list[int]:
        return [int(pid) for pid in run("ip", "netns", "pids", self.name(number)).split()]

    def kill(self, number: int) -> None:
        """Kill every process of the node with signal 9."""
        while pids := self.pids(number):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def at_work(self) -> set[int]:
        """Return the nodes on which a pool's worker has an item."""
        return {number for number in range(1, NODES + 1) if any(map(_has_item, self.pids(number)))}

    def tear_down(self) -> None:
        for number in range(1, NODES + 1):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.kill(number)
            shutil.rmtree(Path("/etc/netns", self.name(number)), ignore_errors=True)
        for process in self.started:
            process.wait()
        for number in range(NODES + 1):
            subprocess.run(["ip", "netns", "del", self.name(number)], capture_output=True, check=False)


def _has_item(pid: int) -> bool:
    try:
        title = " ".join(psutil.Process(pid).cmdline()[:1])
    except psutil.Error:
        return False
    return "MapWorker" in title and ".submit" in title


class Listing:
    """Listings of a root, made by a process on the first node."""

    def __init__(self, machines: Machines, root: str) -> None:
        self._process = machines.inside([sys.executable, "-m", "tests.flows.documents.listing"])
        self._root = root

    def files(self) -> dict[str, tuple[str, float]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(self._root, file=self._process.stdin, flush=True)
        return {
            path: (stamp, modified)
            for path, (stamp, modified) in json.loads(self._process.stdout.readline()).items()
        }

    def written(self) -> dict[str, str]:
        """Return the etag of each file that a night wrote.

        Files that contain the time (manifest, report, commit) and the index's working files are
        left out.
        """
        folders = ("units/", "moments/", "transforms/", "indexes/", "ids/", "encoders/")
        return {
            path: stamp
            for path, (stamp, _) in self.files().items()
            if path.startswith(folders) and not path.startswith("indexes/work/")
        }

    def records(self) -> dict[str, tuple[str, float]]:
        return {
            path: facts
            for path, facts in self.files().items()
            if path.startswith("units/vectors/") and path.endswith(".json")
        }

    def close(self) -> None:
        self._process.communicate()
