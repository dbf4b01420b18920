"""The container of infra/kuberay/serve.yaml runs as its manifest says, with its probes, on a release."""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import load_settings
from pipeline.serve.connections import _SHUTDOWN_S
from pipeline.serve.follow import _LEASE_END_S
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from tests.conftest import ROOT
from tests.index.published import Publisher, texts
from tests.infra.manifests import KUBERAY, of_kind
from tests.jobs.ray_head import environment_of
from tests.models.folders import save_folder
from tests.server import free_port

[DEPLOYMENT] = [found["spec"] for found in of_kind("Deployment").values()]
POD = DEPLOYMENT["template"]["spec"]
[CONTAINER] = POD["containers"]
PROBES = {name: CONTAINER[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
TOKEN = "sesame"
# read-only as in the container, but for its two volumes and the root of releases, which stands for a bucket
READ_ONLY = """
set -e
mount --make-rprivate /
mount --bind "$STORE" "$STORE"
for folder in "$MANTA_CACHE" "$HOME"; do mount -t tmpfs tmpfs "$folder"; done
mount -o remount,bind,ro /
if touch "$PWD/written" 2>/dev/null; then echo "the root is not read-only" >&2; exit 1; fi
exec "$@"
"""


def test_two_services_take_turns_in_an_update_and_in_a_drain():
    [budget] = [found["spec"] for found in of_kind("PodDisruptionBudget").values()]
    assert DEPLOYMENT["replicas"] == 2 > budget["minAvailable"] > 0
    assert DEPLOYMENT["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_every_selector_matches_the_pods_and_the_service_reaches_their_port():
    wanted = DEPLOYMENT["selector"]["matchLabels"]
    labels = DEPLOYMENT["template"]["metadata"]["labels"]
    [service] = [found["spec"] for found in of_kind("Service").values()]
    [budget] = [found["spec"] for found in of_kind("PodDisruptionBudget").values()]
    [spread] = POD["topologySpreadConstraints"]
    assert wanted == labels == service["selector"]
    assert wanted == budget["selector"]["matchLabels"] == spread["labelSelector"]["matchLabels"]
    [port] = CONTAINER["ports"]
    assert [each["targetPort"] for each in service["ports"]] == [port["name"]]
    assert str(port["containerPort"]) == CONTAINER["args"][CONTAINER["args"].index("--port") + 1]
    assert {probe["httpGet"]["port"] for probe in PROBES.values()} == {port["name"]}


def test_the_service_reads_the_root_that_nights_publish_to():
    night = load_settings(Job, KUBERAY / "nightly.yaml")
    assert CONTAINER["args"][:3] == ["manta", "serve", night.release.root]


def test_there_is_time_to_answer_open_requests_and_to_end_the_lease():
    pause = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] >= 2 * (pause + _SHUTDOWN_S + _LEASE_END_S)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("served")
    Publisher(open_store(folder / "root"), save_folder(folder / "bert", "bert"), folder)(texts(20))
    return str(folder / "root")


@contextlib.contextmanager
def running(root: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the command line of the container on a root and a free port of this machine.

    Where mount namespaces can be made, the root file system is read-only, as it is in the pod.
    """
    port = free_port()
    words = [*CONTAINER["args"][:2], root, *CONTAINER["args"][3:]]
    words[words.index("--port") + 1] = str(port)
    mounts = {mount["mountPath"]: str(folder / mount["name"]) for mount in CONTAINER["volumeMounts"]}
    for mounted in mounts.values():
        Path(mounted).mkdir()
    given = {each["name"]: each.get("value") for each in CONTAINER["env"]}
    settings = {name: mounts.get(value, value) for name, value in given.items() if value}
    settings |= {"MANTA_SERVE_TOKEN": TOKEN, "TMPDIR": mounts["/tmp"], "STORE": root}
    isolated = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
    command = ["unshare", "--mount", "bash", "-c", READ_ONLY, "bash", *words] if isolated else words
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment_of(folder) | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


def succeeds(probe: dict[str, Any], port: int) -> bool:
    """Return whether a probe succeeds, by the kubelet's rule: a status of 200 to 399."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{probe['httpGet']['path']}")
    try:
        with urllib.request.urlopen(request, timeout=probe["timeoutSeconds"]) as answer:
            return 200 <= answer.status < 400
    except OSError:
        return False


def search(port: int, **headers: str) -> dict[str, Any]:
    body = json.dumps({"queries": ["a man"], "k": 3}).encode()
    headers = {"Content-Type": "application/json", "Host": "manta-serve.manta.svc:8000", **headers}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/search", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.mark.slow
def test_the_container_starts_is_probed_answers_clients_with_the_token_and_ends_in_time(
    root: str, tmp_path: Path
):
    startup = PROBES["startup"]
    with running(root, tmp_path) as (process, port):
        deadline = time.monotonic() + startup["periodSeconds"] * startup["failureThreshold"]
        while not succeeds(startup, port):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert all(succeeds(probe, port) for probe in PROBES.values())
        with pytest.raises(urllib.error.HTTPError, match="401"):
            search(port)
        assert search(port, Authorization=f"Bearer {TOKEN}")["release"] == 1
        began_s = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=POD["terminationGracePeriodSeconds"])
        assert (process.returncode, errors) == (0, "")
        assert time.monotonic() - began_s < POD["terminationGracePeriodSeconds"]
        assert not any(succeeds(probe, port) for probe in PROBES.values())
