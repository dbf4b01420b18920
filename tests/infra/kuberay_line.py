"""The commands that KubeRay 1.7 generates from a manifest, by the rules of its controllers/ray/common.

They join words by spaces, without quoting any.
"""

import re
from typing import Any

GCS_PORT, DASHBOARD_PORT, METRICS_PORT, AGENT_PORT = 6379, 8265, 8080, 52365
HEALTH_PATH = "/api/healthz"
"""path at AGENT_PORT that the probes of a Ray container ask; Ray has it since 2.53"""
_BYTES = {"Mi": 1 << 20, "Gi": 1 << 30}
_VALUES = ("log-color", "include-dashboard", "include-log-monitor")  # take "true" and "false" as values
_UNREAD = re.compile(r"(?:[\w@%+=:,./ -]|'[\w@%+=:,./ &|;<>()*?\[\]{}~#!-]*')*")


def kuberay_line(entrypoint: str, address: str, job_id: str) -> list[str]:
    """Return the command of the submitter's container, which sends the entrypoint to the job API.

    The rules are in job.go, `BuildJobSubmitCommand`.
    """
    answers = (
        f"import urllib.request; r=urllib.request.urlopen('{address}/api/gcs_healthz', timeout=10); "
        "exit(0 if b'success' in r.read() else 1)"
    )
    words = [
        *("until", f'python -c "{answers}"', ">/dev/null", "2>&1", ";"),
        *("do", "echo", f'"Waiting for Ray Dashboard GCS to become healthy at {address} ..."', ";"),
        *("sleep", "2", ";", "done", ";"),
        *("if", "!", "ray", "job", "status", "--address", address, job_id, ">/dev/null", "2>&1", ";", "then"),
        *("ray", "job", "submit", "--address", address, "--no-wait", "--submission-id", job_id),
        *("--", entrypoint.strip(), ";", "fi", ";"),
        *("ray", "job", "logs", "--address", address, "--follow", job_id),
    ]
    return ["/bin/bash", "-ce", "--", " ".join(words)]


def is_whole(entrypoint: str) -> bool:
    """Return whether the submitter's bash passes the entrypoint on without acting on any of it.

    Operators and patterns must be in single quotes. Ray sends the words in double quotes to a shell of the
    head, which expands $, ` and \\ there, so these are refused everywhere.
    """
    return _UNREAD.fullmatch(entrypoint) is not None


def start_line(group: dict[str, Any], head: str = "") -> list[str]:
    """Return the command of a Ray container, by pod.go: `setMissingRayStartParams` and
    `generateRayStartCommand`.

    Args:
        group: a head's or a worker group's specification.
        head: address of the head's GCS, for a worker.
    """
    resources = group["template"]["spec"]["containers"][0]["resources"]
    missing = {"address": head} if head else {"dashboard-host": "0.0.0.0"}
    missing |= {"metrics-export-port": f"{METRICS_PORT}", "dashboard-agent-listen-port": f"{AGENT_PORT}"}
    missing |= {
        option: resources[kind][resource]
        for option, resource in {"num-cpus": "cpu", "num-gpus": "nvidia.com/gpu"}.items()
        for kind in ("requests", "limits")  # a limit counts more
        if resource in resources[kind]
    }
    memory = resources["limits"]["memory"]
    missing["memory"] = str(int(memory[:-2]) * _BYTES[memory[-2:]])
    parameters = missing | group["rayStartParams"] | {"block": "true"}
    words = [
        f"--{name}" if value == "true" and name not in _VALUES else f"--{name}={value}"
        for name, value in sorted(parameters.items())
        if value != "false" or name in _VALUES
    ]
    command = " ".join(["ray start", *([] if head else ["--head"]), *words])
    return ["/bin/bash", "-c", "--", f"ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {command}"]


def wait_line(head: str) -> list[str]:
    """Return a command that does what a worker's init container does: wait for the GCS of the head."""
    return ["/bin/bash", "-c", "--", f"until ray health-check --address {head}; do sleep 5; done"]


def older_probe(agent_port: int = AGENT_PORT, dashboard_port: int | None = None) -> list[str]:
    """Return the command by which operators probe a Ray older than 2.53; with a dashboard, that of a head."""
    asked = [f"{agent_port}/api/local_raylet_healthz"]
    asked += [f"{dashboard_port}/api/gcs_healthz"] if dashboard_port else []
    line = " && ".join(f"wget --tries 1 -T 2 -q -O- http://localhost:{each} | grep success" for each in asked)
    return ["bash", "-c", line]
