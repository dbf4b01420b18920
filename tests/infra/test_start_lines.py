"""Ray accepts the lines with which KubeRay starts the head and the workers of every manifest; a head and a
worker that were started with them pass the operator's probes.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from tests.infra.kuberay_line import HEALTH_PATH, METRICS_PORT, older_probe, start_line, wait_line
from tests.infra.manifests import clusters
from tests.jobs.ray_head import Head, ray_head, wait_until
from tests.server import free_port

_RAY = """#!{python}
import json, sys
print(json.dumps(sys.argv[1:]))
"""
HEAD = "manta-head-svc.manta.svc.cluster.local:6379"
GROUPS = [
    (f"{name} {group.get('groupName', 'head')}", group)
    for name, spec in clusters().items()
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
]


def accepted(line: list[str], programs: Path) -> dict[str, Any]:
    """Run a line with a `ray` that only prints its arguments; return how Ray's own command reads them."""
    from ray.scripts.scripts import start

    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(line, env={"PATH": path}, capture_output=True, text=True, timeout=20)
    command, *arguments = json.loads(done.stdout)
    assert command == "start"
    with start.make_context("ray start", arguments) as context:
        return dict(context.params)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's command imports Ray Serve, which warns
def test_ray_accepts_the_start_line_of_every_group_with_the_resources_of_its_pod(tmp_path: Path):
    program = tmp_path / "ray"
    program.write_text(_RAY.format(python=sys.executable))
    program.chmod(0o700)
    assert len(GROUPS) >= 9
    for name, group in GROUPS:
        is_head = name.endswith(" head")
        read = accepted(start_line(group, "" if is_head else HEAD), tmp_path)
        [container] = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        assert (read["head"], read["block"], read["address"]) == (is_head, True, None if is_head else HEAD)
        assert read["dashboard_host"] == ("0.0.0.0" if is_head else "127.0.0.1"), name
        assert read["num_cpus"] == (0 if is_head else int(container["resources"]["requests"]["cpu"])), name
        assert (read["num_gpus"] or 0) == int(limits.get("nvidia.com/gpu", 0)), name
        assert read["memory"] == int(limits["memory"].removesuffix("Gi")) << 30, name
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert read["metrics_export_port"] == ports["metrics"] == METRICS_PORT
        if is_head:
            assert (read["port"] or 6379, read["dashboard_port"]) == (ports["gcs"], ports["dashboard"]), name


def with_options(group: dict[str, Any], options: dict[str, str]) -> dict[str, Any]:
    """Return a group with further options of `ray start`; those of the manifest count more."""
    return group | {"rayStartParams": options | group["rayStartParams"]}


def nodes_of(head: Head) -> list[dict[str, Any]]:
    """Return the resources and the address of every live node, the head first."""
    found = [each["raylet"] for each in head.get("/nodes?view=summary")["data"]["summary"]]
    alive = [each for each in found if each["state"] == "ALIVE"]
    return sorted(alive, key=lambda each: not each["isHeadNode"])


@pytest.mark.slow
def test_a_head_and_a_worker_that_kuberay_starts_pass_its_probes(tmp_path: Path):
    spec = clusters()["raycluster.yaml manta RayCluster"]

    def start(options: dict[str, str]) -> str:
        line = shlex.join(start_line(with_options(spec["headGroupSpec"], options)))
        return f"export RAY_AUTH_MODE=token; ray get-auth-token --generate > /dev/null; exec {line}"

    with ray_head(start) as head:
        gcs = f"127.0.0.1:{head.ports['port']}"
        subprocess.run(wait_line(gcs), env=head.environment(), check=True, timeout=60)
        ports = {name: free_port() for name in ("metrics-export-port", "dashboard-agent-listen-port")}
        options = {name: str(port) for name, port in ports.items()} | {"object-store-memory": "100000000"}
        worker = subprocess.Popen(
            start_line(with_options(spec["workerGroupSpecs"][0], options), gcs),
            env=head.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: len(nodes_of(head)) == 2, worker)
            resources = [each["resourcesTotal"] for each in nodes_of(head)]
            assert [each.get("CPU", 0) for each in resources] == [0, 4]
            assert [each["memory"] for each in resources] == [8 << 30, 16 << 30]
            agents = [head.ports["dashboard-agent-listen-port"], ports["dashboard-agent-listen-port"]]
            addresses = [each["nodeManagerAddress"] for each in nodes_of(head)]
            for address, port in zip(addresses, agents, strict=True):
                wait_until(lambda at=f"http://{address}:{port}{HEALTH_PATH}": passes(at), worker)
            of_head = older_probe(agents[0], head.ports["dashboard-port"])
            for probe in (of_head, older_probe(agents[1])):
                subprocess.run(probe, check=True, timeout=20, stdout=subprocess.DEVNULL)
        finally:
            for each in (*psutil.Process(worker.pid).children(recursive=True), worker):
                each.kill()
            worker.wait(timeout=60)


def passes(url: str) -> bool:
    """Return whether a probe by HTTP passes. The kubelet sends no token."""
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
