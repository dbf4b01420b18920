"""The schedule's pod creates one RayJob per tick, however often it is restarted, and ends with the exit code
of the night. It is tested on an HTTP server that answers as Kubernetes does.
"""

import importlib.util
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.infra.manifests import KUBERAY

JOBS = "/apis/ray.io/v1/namespaces/manta/rayjobs"
CLUSTERS = "/apis/ray.io/v1/namespaces/manta/rayclusters"
SUCCEEDED = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}


class Kubernetes(ThreadingHTTPServer):
    """RayJobs and RayClusters of one namespace.

    Attributes:
        jobs: RayJobs by name.
        clusters: names of RayClusters.
        statuses: statuses that successive GETs of a job return, None if it was deleted; the last one is
            repeated.
        failures: HTTP codes with which the next requests are answered instead; 0 for half an answer.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.jobs: dict[str, Any] = {}
        self.clusters = {"theirs", "manta-nightly-x7k2p"}
        self.statuses: list[dict[str, str] | None] = [SUCCEEDED]
        self.failures: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Kubernetes

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        name = job["metadata"]["name"]
        known = name in self.server.jobs
        self.server.jobs.setdefault(name, job)
        self._say(409 if known else 201, job if self.path == JOBS else {})

    def do_GET(self) -> None:
        if self._refused():
            return
        statuses = self.server.statuses
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        job = self.server.jobs[self.path.removeprefix(f"{JOBS}/")]
        self._say(404 if status is None else 200, job | {"status": status})

    def do_DELETE(self) -> None:
        if self._refused():
            return
        name = self.path.removeprefix(f"{CLUSTERS}/")
        code = 200 if name in self.server.clusters else 404
        self.server.clusters.discard(name)  # before the answer, after which the test looks
        self._say(code, {})

    def _refused(self) -> bool:
        if self.headers["Authorization"] != "Bearer sesame":
            code = 401
        elif self.server.failures:
            code = self.server.failures.pop(0)
        else:
            return False
        self._say(code, {"message": "no"})
        return True

    def _say(self, code: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(code or 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if code else content[:5])

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def kubernetes() -> Iterator[Kubernetes]:
    with Kubernetes() as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("follow_rayjob", KUBERAY / "follow_rayjob.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "namespace").write_text("manta\n")
    (tmp_path / "token").write_text("sesame\n")
    return tmp_path


@pytest.fixture
def api(program: ModuleType, kubernetes: Kubernetes, account: Path) -> Any:
    return program.Api(kubernetes.url, account, poll_s=0.01, patience_s=0.2)


MANIFEST = yaml.safe_load((KUBERAY / "rayjob-nightly.yaml").read_text())


def test_a_restarted_pod_follows_the_job_that_it_created(
    program: ModuleType, api: Any, kubernetes: Kubernetes
):
    running = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}
    kubernetes.statuses = [{}, {"jobDeploymentStatus": "Initializing"}, running, SUCCEEDED]
    assert program.follow(api, MANIFEST, "manta-nightly-29384160") == 0
    assert program.follow(api, MANIFEST, "manta-nightly-29384160") == 0
    assert list(kubernetes.jobs) == ["manta-nightly-29384160"]
    assert kubernetes.jobs["manta-nightly-29384160"]["spec"] == MANIFEST["spec"]
    assert program.follow(api, MANIFEST, "manta-nightly-29385600") == 0
    assert len(kubernetes.jobs) == 2


@pytest.mark.parametrize(
    "status",
    [
        {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED"},
        {"jobDeploymentStatus": "Failed", "jobStatus": "RUNNING"},
        {"jobDeploymentStatus": "ValidationFailed"},
        {"jobDeploymentStatus": "Failed"},
    ],
)
def test_a_night_that_failed_ends_with_1(
    program: ModuleType, api: Any, kubernetes: Kubernetes, status: dict[str, str]
):
    kubernetes.statuses = [{"jobDeploymentStatus": "Retrying"}, status]
    assert program.follow(api, MANIFEST, "manta-nightly-1") == 1
    assert kubernetes.clusters == {"theirs", "manta-nightly-x7k2p"}, "the operator's rules delete it"


def test_the_cluster_of_a_stopped_night_is_deleted_once_and_its_job_is_kept(
    program: ModuleType, api: Any, kubernetes: Kubernetes
):
    stopped = {"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}
    kubernetes.statuses = [stopped | {"rayClusterName": "manta-nightly-x7k2p"}]
    assert program.follow(api, MANIFEST, "manta-nightly-1") == 1
    assert kubernetes.clusters == {"theirs"}
    assert program.follow(api, MANIFEST, "manta-nightly-1") == 1, "a restarted pod finds no cluster"
    assert (kubernetes.clusters, list(kubernetes.jobs)) == ({"theirs"}, ["manta-nightly-1"])


def test_a_night_that_is_retried_is_followed_to_its_last_try(
    program: ModuleType, api: Any, kubernetes: Kubernetes
):
    tries = [{"jobDeploymentStatus": "Running"}, {"jobDeploymentStatus": "Retrying"}, {}]
    kubernetes.statuses = [*tries, *tries, {"jobDeploymentStatus": "Running"}, SUCCEEDED]
    assert program.follow(api, MANIFEST, "manta-nightly-1") == 0


def test_a_night_whose_job_is_deleted_ends_with_1(program: ModuleType, api: Any, kubernetes: Kubernetes):
    kubernetes.statuses = [{"jobDeploymentStatus": "Running"}, None]
    assert program.follow(api, MANIFEST, "manta-nightly-1") == 1


def test_an_unavailable_api_server_is_asked_again(program: ModuleType, api: Any, kubernetes: Kubernetes):
    kubernetes.failures = [503, 0, 429, 500, 0]
    assert program.follow(api, MANIFEST, "manta-nightly-1") == 0
    assert (kubernetes.failures, list(kubernetes.jobs)) == ([], ["manta-nightly-1"])


def test_a_refused_request_is_not_repeated_and_its_response_is_shown(
    program: ModuleType, api: Any, kubernetes: Kubernetes
):
    kubernetes.failures = [403]
    with pytest.raises(program.Refused, match=r"403.*no"):
        program.follow(api, MANIFEST, "manta-nightly-1")
    assert kubernetes.jobs == {}


def test_a_server_that_stays_unavailable_is_an_error(program: ModuleType, account: Path):
    with pytest.raises(OSError):
        program.follow(
            program.Api("http://127.0.0.1:9", account, poll_s=0.01, patience_s=0.1),
            MANIFEST,
            "manta-nightly-1",
        )
