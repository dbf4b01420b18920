"""`ray job submit --working-dir .` on a head that is started as infra/README.md says.

Releases, exit codes in the job API, a driver that is killed and submitted again, and clients that reach the
ports without the token.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
import yaml

from pipeline.index.search.search import open_release
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.flows.conftest import ROOT, encoded_units, unit_hashes, write_corpus
from tests.infra.kuberay_line import kuberay_line
from tests.infra.manifests import jobs
from tests.jobs.ray_head import Head, environment_of, program, ray_head, wait_until
from tests.models.folders import save_folder

pytest.importorskip("opencensus", reason="job submission needs ray[default]")

pytestmark = pytest.mark.slow
_PATIENCE_S = 180.0
_OTHERS = (".gitignore", ".rayignore", "infra/kuberay/nightly.yaml", "pyproject.toml")
_LARGEST_FILE = 64 << 10  # bytes; anything larger is no code
QUERIES = ["a man reads", "the lazy dog sleeps near the river"]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ray_head() as started:
        yield started


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a corpus of 600 rows and a small encoder."""
    folder = tmp_path_factory.mktemp("submitted")
    write_corpus(folder / "corpus", count=600)
    save_folder(folder / "encoder", "bert")
    return folder


def night(work: Path, root: str, **sections: dict[str, Any]) -> list[str]:
    """Write the settings of a night that publishes below `root`; return its entrypoint."""
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


def driver(config: str) -> int:
    """Return the process id of the driver that was started with this settings file."""
    found = [
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if (each.info["cmdline"] or [""])[-1].endswith(config) and "python" in each.info["cmdline"][0]
    ]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(scope="module")
def undisturbed(head: Head, work: Path) -> Path:
    """The root of a night that was submitted and not disturbed."""
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


def test_rays_tools_name_what_runs(head: Head, undisturbed: Path):
    [job] = [each for each in head.get("/api/jobs/") if each["submission_id"] == "undisturbed"]
    datasets = head.get(f"/api/data/datasets/{job['job_id']}")["datasets"]
    assert "EncodeUnit" in {each["dataset"].partition("_")[0] for each in datasets}
    assert "MapBatches(EncodeUnit)" in {step["name"] for each in datasets for step in each["operators"]}
    logs = head.logs("undisturbed")
    assert logs.count("nodes: done") == 1, "every node was asked before work"
    assert "[state-dump]" not in logs


# The manifests that run one stage need the results of those before them; the last one measures the release.
STAGES = ("encode", "whiten", "index", "nightly", "evaluate")


def test_kuberays_line_runs_every_entrypoint_inside_the_submitted_job(head: Head, work: Path):
    *_, config = night(work, "kuberay")
    entrypoints = {
        name.split()[0].removeprefix("rayjob-").removesuffix(".yaml"): spec["entrypoint"]
        for name, spec in jobs().items()
    }
    assert entrypoints.pop("raycronjob") == entrypoints["nightly"]
    assert entrypoints.keys() == set(STAGES)
    for name in STAGES:
        entrypoint = entrypoints[name].replace("/etc/manta/nightly.yaml", config)
        done = subprocess.run(
            kuberay_line(entrypoint, head.address, f"kuberay-{name}"),
            env=head.environment(),
            cwd=work,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
        job, logs = head.job(f"kuberay-{name}"), head.logs(f"kuberay-{name}")
        assert (done.returncode, job["status"]) == (0, "SUCCEEDED"), (name, logs[-3000:], done.stderr[-3000:])
        [answer] = [json.loads(line) for line in logs.splitlines() if line.startswith('{"')]
        assert ("ok       cluster" in logs) == ("ok       nodes     1 node" in logs) == (name == "nightly")
        assert (work / "kuberay" / "commits").exists() == (name in ("nightly", "evaluate")), answer
    release = open_release(str(work / "kuberay"))
    assert (release.manifest.release, release.manifest.rows) == (1, 600)


def test_only_files_that_jobs_need_are_uploaded(head: Head, undisturbed: Path):
    files = head.uploaded()
    assert {
        "jobs/nightly.py",
        "pipeline/flows/night/nightly.py",
        "jobs/configs/nightly.yaml",
        "infra/kuberay/nightly.yaml",
    } <= {file.as_posix() for file in files}
    # Ray stores the files uncompressed in the memory of the head: only code of jobs and settings may be there
    others = [
        file.as_posix()
        for file in files
        if file.parts[0] not in ("jobs", "pipeline") or file.suffix not in (".py", ".yaml", ".j2", ".typed")
    ]
    assert sorted(others) == sorted(_OTHERS)
    assert not any(file.parts[:2] == ("pipeline", "serve") for file in files)
    sizes = {file.as_posix(): (head.working_dir / file).stat().st_size for file in files}
    assert {name: size for name, size in sizes.items() if size > _LARGEST_FILE} == {}


def test_wrong_settings_end_with_2_in_the_job_api(head: Head, work: Path):
    assert head.submit("wrong", night(work, "wrong", index={"kind": "pyramid"})) == 1, (
        "Ray's command line returns 1 for every failure"
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
    wait_until(lambda: len(encoded_units(root)) >= 3)
    os.kill(driver("killed.yaml"), signal.SIGKILL)
    wait_until(lambda: head.job("killed")["status"] == "FAILED")
    assert head.job("killed")["driver_exit_code"] in (-signal.SIGKILL, 128 + signal.SIGKILL)
    before = encoded_units(root)
    assert 3 <= len(before) < 24, "it was killed in the middle of encoding"
    assert head.submit("again", entrypoint) == 0, head.logs("again")[-3000:]
    after = encoded_units(root)
    assert {name: after[name] for name in before} == before, "finished units were not encoded again"
    assert unit_hashes(root, after_a_kill=True) == unit_hashes(undisturbed)
    assert open_release(str(root)).search(QUERIES, 10) == open_release(str(undisturbed)).search(QUERIES, 10)


_TOUCH = """
import pathlib, sys
import ray

ray.init(address=sys.argv[1], log_to_driver=False)
ray.get(ray.remote(num_cpus=0)(lambda path: pathlib.Path(path).touch()).remote(sys.argv[2]))
"""


def test_only_the_owner_can_read_the_token_file(head: Head):
    assert head.token.stat().st_mode & 0o077 == 0
    assert len(head.token.read_text()) >= 32
    assert head.token.read_text() not in (head.folder / "head.log").read_text()


def test_only_clients_with_the_token_can_run_code(head: Head, tmp_path: Path):
    address = f"127.0.0.1:{head.ports['port']}"
    without = environment_of(tmp_path) | {"RAY_AUTH_MODE": "disabled"}
    wrong = environment_of(tmp_path) | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    client = f"ray://127.0.0.1:{head.ports['ray-client-server-port']}"
    tries = {
        "a driver without a token": (without, [sys.executable, "-c", _TOUCH, address]),
        "a driver with another token": (wrong, [sys.executable, "-c", _TOUCH, address]),
        "a client without a token": (without, [sys.executable, "-c", _TOUCH, client]),
        "a job without a token": (
            without,
            [program("ray"), "job", "submit", "--address", head.address, "--", "touch"],
        ),
        "a job with another token": (
            wrong,
            [program("ray"), "job", "submit", "--address", head.address, "--", "touch"],
        ),
        "a node without a token": (
            without,
            [program("ray"), "start", "--block", "--address", address, "--temp-dir"],
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
def test_a_command_without_the_token_names_the_missing_token(
    head: Head, work: Path, environment: dict[str, str], words: str
):
    cluster = {"address": f"127.0.0.1:{head.ports['port']}", "small_rows": 0}
    *_, config = night(work, "lacking", cluster=cluster)
    command = [sys.executable, "-m", "jobs.nightly", "--config", config]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment_of(work) | environment,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )
    assert done.returncode == (2 if environment["RAY_AUTH_MODE"] == "token" else 75)
    last = done.stderr.splitlines()[-1]
    assert "cluster.address" in last
    assert words in last
    assert "RAY_AUTH_TOKEN_PATH" in last
