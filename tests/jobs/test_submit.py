"""`ray job submit --working-dir .` against a head that is started as infra/README.md says.

Releases, exit codes as the job API tells them, a driver that is killed and submitted again, and intruders:
whoever reaches the ports without the token.
"""

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
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psutil
import pytest
import yaml

from pipeline import open_release
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from tests.flows.conftest import ROOT, write_corpus
from tests.models.folders import save_folder
from tests.server import free_port

pytest.importorskip("opencensus", reason="job submission needs ray[default]")

pytestmark = pytest.mark.slow
_PATIENCE_S = 180.0
_MOST_UPLOADED = 4 << 20  # bytes; the code is well below one MiB
QUERIES = ["a man reads", "the lazy dog sleeps near the river"]


@dataclass(frozen=True)
class Head:
    """A Ray head that was started with `ray start`: its ports by option, and its directory, in which its user
    is at home.
    """

    ports: dict[str, int]
    folder: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.ports['dashboard-port']}"

    @property
    def token(self) -> Path:
        return _home(self.folder) / ".ray" / "auth_token"

    def environment(self) -> dict[str, str]:
        """The environment of a user who has the token and says so."""
        return _environment(_home(self.folder)) | {"RAY_AUTH_MODE": "token"}

    def ray(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [_script("ray"), *words],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )

    def submit(self, name: str, entrypoint: list[str], *, wait: bool = True) -> int:
        """The exit code of `ray job submit`."""
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
        """Answer of the dashboard to somebody who has the token."""
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

    def uploaded(self) -> list[Path]:
        """Files that --working-dir brought to the node, relative to the directory."""
        [package] = [
            path
            for path in self.folder.glob("session_latest/runtime_resources/working_dir_files/*")
            if path.is_dir()
        ]
        return [
            path.relative_to(package)
            for path in package.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ]


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _home(folder: Path) -> Path:
    return folder / "home"


def _environment(home: Path) -> dict[str, str]:
    """A user of this machine: the environment's programs first, no token and address of some other Ray, no
    notices.
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    ours = {"PATH": path, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_A") and name != "PYTHONPATH"
    }
    return kept | ours


def documented() -> str:
    """The commands of infra/README.md up to the one that starts a head, which comes last."""
    [block] = [
        each
        for each in re.findall(r"```\n(.*?)```", (ROOT / "infra/README.md").read_text(), re.DOTALL)
        if "ray start --head" in each
    ]
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    return "\n".join(
        lines[: next(number for number, line in enumerate(lines) if line.startswith("ray start --head")) + 1]
    )


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A head as documented, with ports of its own and CPUs, which elsewhere the other nodes have."""
    folder = Path(tempfile.mkdtemp(prefix="manta-"))  # short: Ray puts sockets below it
    names = (
        "port",
        "dashboard-port",
        "dashboard-agent-listen-port",
        "ray-client-server-port",
        "metrics-export-port",
    )
    started = Head({name: free_port() for name in names}, folder)
    _home(folder).mkdir()
    options = [f"--temp-dir={folder}", "--num-cpus=2", "--object-store-memory=150000000", "--block"]
    options += [
        f"--{name}={port}" for name, port in started.ports.items()
    ]  # of an option given twice the last counts
    script = f"set -e\n{documented()} {' '.join(options)}"
    with open(folder / "head.log", "w") as log:
        process = subprocess.Popen(
            ["bash", "-c", script],
            env=_environment(_home(folder)),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait(started.answers, process)
        yield started
    finally:
        _end(process, folder)


def _wait(done: Callable[[], object], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, "the head ended"
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """The head and all that runs in its directory; `ray stop` would end every Ray of the machine."""
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


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a corpus of 600 rows and a small encoder."""
    folder = tmp_path_factory.mktemp("submitted")
    write_corpus(folder / "corpus", count=600)
    save_folder(folder / "encoder", "bert")
    return folder


def night(work: Path, root: str, **sections: dict[str, Any]) -> list[str]:
    """The entrypoint of a night that publishes below `root`, with its settings in a file."""
    job = {
        "corpus": {"uri": str(work / "corpus"), "keep": ["text"]},
        "encoder": {"path": str(work / "encoder")},
        "encode": {"unit_rows": 25},
        "whiten": {"mode": "off"},
        "index": {"queries": 60, "shards": 2},
        "release": {"root": str(work / root)},
    }
    file = work / f"{root}.yaml"
    file.write_text(yaml.safe_dump(job | sections))
    return ["python", "-m", "jobs.nightly", "--json", "--config", str(file)]


def records(root: Path) -> dict[str, int]:
    """Finished embedding units, with the time they were written."""
    return {path.name: path.stat().st_mtime_ns for path in root.glob("units/vectors/*/*.json")}


def units(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in (root / "units").rglob("*")
        if path.is_file()
    }


def driver(config: str) -> int:
    """Process id of the driver that works with that file of settings."""
    found = [
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if (each.info["cmdline"] or [""])[-1].endswith(config) and "python" in each.info["cmdline"][0]
    ]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(scope="module")
def undisturbed(head: Head, work: Path) -> Path:
    """The root of a night that was submitted and left alone."""
    assert head.submit("undisturbed", night(work, "undisturbed")) == 0, head.logs("undisturbed")[-3000:]
    return work / "undisturbed"


def test_a_submitted_night_publishes_a_release(head: Head, undisturbed: Path):
    job = head.job("undisturbed")
    assert (job["status"], job["driver_exit_code"]) == ("SUCCEEDED", 0)
    [answer] = [
        json.loads(line) for line in head.logs("undisturbed").splitlines() if line.startswith('{"status"')
    ]
    assert (answer["status"], answer["release"], answer["rows"]) == ("published", 1, 600)
    release = open_release(str(undisturbed))
    assert (release.manifest.release, release.manifest.rows) == (1, 600)


def test_only_what_jobs_need_is_uploaded(head: Head, undisturbed: Path):
    files = head.uploaded()
    assert {
        "jobs/nightly.py",
        "pipeline/flows/night/nightly.py",
        "jobs/configs/nightly.yaml",
        "infra/kuberay/nightly.yaml",
    } <= {file.as_posix() for file in files}
    assert not {".git", "tests", "out", ".ci", ".mypy_cache", ".hypothesis"} & {
        file.parts[0] for file in files
    }
    [package] = [
        path
        for path in head.folder.glob("session_latest/runtime_resources/working_dir_files/*")
        if path.is_dir()
    ]
    assert sum((package / file).stat().st_size for file in files) < _MOST_UPLOADED


def test_wrong_settings_end_with_2_in_the_job_api(head: Head, work: Path):
    assert head.submit("wrong", night(work, "wrong", index={"kind": "pyramid"})) == 1, (
        "the command line of Ray knows success and failure only"
    )
    job = head.job("wrong")
    assert (job["status"], job["driver_exit_code"]) == ("FAILED", 2)
    assert "pyramid" in head.logs("wrong")


def test_a_refused_candidate_ends_with_5_in_the_job_api_and_publishes_nothing(head: Head, work: Path):
    write_corpus(work / "small", count=100)
    entrypoint = night(work, "refused", corpus={"uri": str(work / "small")}, gates={"max_size_gib": 1e-9})
    assert head.submit("refused", entrypoint) == 1
    job = head.job("refused")
    assert (job["status"], job["driver_exit_code"]) == ("FAILED", 5)
    assert Releases(open_store(work / "refused")).current() is None


def test_a_killed_driver_is_submitted_again_and_the_release_is_the_same(
    head: Head, work: Path, undisturbed: Path
):
    root, entrypoint = work / "killed", night(work, "killed")
    assert head.submit("killed", entrypoint, wait=False) == 0
    _wait(lambda: len(records(root)) >= 3)
    os.kill(driver("killed.yaml"), signal.SIGKILL)
    _wait(lambda: head.job("killed")["status"] == "FAILED")
    assert head.job("killed")["driver_exit_code"] in (-signal.SIGKILL, 128 + signal.SIGKILL)
    before = records(root)
    assert 3 <= len(before) < 24, "it was killed in the middle of encoding"
    assert head.submit("again", entrypoint) == 0, head.logs("again")[-3000:]
    after = records(root)
    assert {name: after[name] for name in before} == before, "what was finished was not encoded again"
    assert units(root) == units(undisturbed)
    assert open_release(str(root)).search(QUERIES, 10) == open_release(str(undisturbed)).search(QUERIES, 10)


_TOUCH = """
import pathlib, sys
import ray

ray.init(address=sys.argv[1], log_to_driver=False)
ray.get(ray.remote(num_cpus=0)(lambda path: pathlib.Path(path).touch()).remote(sys.argv[2]))
"""


def test_the_token_is_its_owners_alone(head: Head):
    assert head.token.stat().st_mode & 0o077 == 0
    assert len(head.token.read_text()) >= 32
    assert head.token.read_text() not in (head.folder / "head.log").read_text()


def test_whoever_has_the_token_may_run_code_and_nobody_else(head: Head, tmp_path: Path):
    address = f"127.0.0.1:{head.ports['port']}"
    without = _environment(tmp_path) | {"RAY_AUTH_MODE": "disabled"}
    wrong = _environment(tmp_path) | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    client = f"ray://127.0.0.1:{head.ports['ray-client-server-port']}"
    tries = {
        "a driver without a token": (without, [sys.executable, "-c", _TOUCH, address]),
        "a driver with another token": (wrong, [sys.executable, "-c", _TOUCH, address]),
        "a client without a token": (without, [sys.executable, "-c", _TOUCH, client]),
        "a job without a token": (
            without,
            [_script("ray"), "job", "submit", "--address", head.address, "--", "touch"],
        ),
        "a job with another token": (
            wrong,
            [_script("ray"), "job", "submit", "--address", head.address, "--", "touch"],
        ),
        "a node without a token": (
            without,
            [_script("ray"), "start", "--block", "--address", address, "--temp-dir"],
        ),
        "a driver with the token": (head.environment(), [sys.executable, "-c", _TOUCH, address]),
    }
    witnesses = {name: tmp_path / name.replace(" ", "-") for name in tries}
    running = {
        name: subprocess.Popen(
            [*command, str(witnesses[name])],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name, (environment, command) in tries.items()
    }
    codes = {name: process.wait(_PATIENCE_S) for name, process in running.items()}
    assert {name for name, code in codes.items() if code == 0} == {"a driver with the token"}
    made = {name for name, witness in witnesses.items() if witness.is_file()}
    assert made == {"a driver with the token"}
    assert len(head.get("/nodes?view=summary")["data"]["summary"]) == 1, "no node joined"


@pytest.mark.parametrize("port", ["dashboard-port", "dashboard-agent-listen-port"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": f"Bearer {'0' * 64}"}])
def test_the_job_api_takes_no_job_without_the_token(head: Head, port: str, headers: dict[str, str]):
    path = "/api/jobs/" if port == "dashboard-port" else "/api/job_agent/jobs/"
    job = Request(
        f"http://127.0.0.1:{head.ports[port]}{path}",
        data=b'{"entrypoint": "id"}',
        headers=headers | {"Content-Type": "application/json"},
    )
    with pytest.raises(HTTPError) as error:
        urlopen(job, timeout=10)
    assert error.value.code in (401, 403)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RAY_AUTH_MODE": "token"}, "a token"),
        ({"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE=token"),
    ],
)
def test_a_command_of_ours_without_the_token_says_what_it_lacks(
    head: Head, work: Path, environment: dict[str, str], words: str
):
    config = night(work, "lacking", cluster={"address": f"127.0.0.1:{head.ports['port']}", "small_rows": 0})[
        -1
    ]
    command = [sys.executable, "-m", "jobs.nightly", "--config", config]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=_environment(work) | environment,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )
    assert done.returncode == (2 if environment["RAY_AUTH_MODE"] == "token" else 75)
    last = done.stderr.splitlines()[-1]
    assert "cluster.address" in last
    assert words in last
    assert "RAY_AUTH_TOKEN_PATH" in last
