"""Create tonight's RayJob and follow it to its end; runs in the pod of cronjob.yaml.

    python follow_rayjob.py rayjob-nightly.yaml

The environment variable RAYJOB_NAME is the name of the RayJob. If it exists already, an earlier pod of the
same schedule has created it, and this one only follows it. If `ray job stop` ended the night, this program
deletes its cluster: the operator's deletion rules know only nights that succeeded or failed. Exit codes: 0
the night succeeded, 1 it failed, was stopped or its RayJob was deleted, 2 the API server refused a request,
75 the API server did not answer for half an hour.
"""

import json
import os
import ssl
import sys
import time
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import yaml

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POLL_S = 30.0  # between two requests
_PATIENCE_S = 1_800.0  # without an answer; an upgrade of the control plane takes less
_RETRIED_CODES = (408, 429, 500, 502, 503, 504)
_NO_ANSWER = (OSError, HTTPException, ValueError)  # no connection; a truncated answer; one that is not JSON


class Refused(Exception):
    """The API server refused a request, and would refuse it again."""


@dataclass(frozen=True)
class Api:
    """Client of the Kubernetes API for the RayJobs and RayClusters of the pod's namespace.

    Attributes:
        server: URL of the API server.
        account: folder of the pod's service account, with namespace, token and ca.crt.
        poll_s: seconds between two requests.
        patience_s: seconds without an answer after which a request fails.
    """

    server: str
    account: Path = _ACCOUNT
    poll_s: float = _POLL_S
    patience_s: float = _PATIENCE_S

    def create(self, job: dict[str, Any]) -> bool:
        """Create the job. Returns False if a job of that name exists."""
        return self._call("POST", "rayjobs", job) is not None

    def status(self, name: str) -> dict[str, Any] | None:
        """Return the status that the operator gave the job: empty before the first; None without a job."""
        job = self._call("GET", f"rayjobs/{name}")
        return None if job is None else job.get("status") or {}

    def delete_cluster(self, name: str) -> None:
        """Delete a cluster with its pods. Does nothing if there is none of that name."""
        self._call("DELETE", f"rayclusters/{name}")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Send a request and return the answer.

        Returns None if what it creates exists (409), or what it asks for does not (404). A request without
        an answer is repeated for `patience_s` seconds; then the last error is raised.
        """
        as_expected = 409 if method == "POST" else 404
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return self._request(method, path, body)
            except HTTPError as error:
                if error.code == as_expected:
                    return None
                if error.code not in _RETRIED_CODES:
                    reason = error.read().decode(errors="replace")[:500]
                    raise Refused(f"{method} {error.url}: {error.code} {reason}") from error
                if time.monotonic() > deadline:
                    raise
            except _NO_ANSWER:
                if time.monotonic() > deadline:
                    raise
            time.sleep(self.poll_s)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        namespace = (self.account / "namespace").read_text().strip()
        token = (self.account / "token").read_text().strip()  # read each time: it is renewed every hour
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = Request(
            f"{self.server}/apis/ray.io/v1/namespaces/{namespace}/{path}",
            json.dumps(body).encode() if body else None,
            headers,
            method=method,
        )
        with urlopen(request, timeout=30, context=self._tls_context()) as answer:
            content: dict[str, Any] = json.load(answer)
        return content

    def _tls_context(self) -> ssl.SSLContext | None:
        if not self.server.startswith("https:"):
            return None
        return ssl.create_default_context(cafile=str(self.account / "ca.crt"))


def follow(api: Api, manifest: dict[str, Any], name: str) -> int:
    """Create the job `name` from the manifest unless it exists, wait for its end, and return an exit code."""
    is_new = api.create(manifest | {"metadata": manifest["metadata"] | {"name": name}})
    print(f"{'created' if is_new else 'following'} rayjob {name}", flush=True)
    previous_state = ""
    while True:
        status = api.status(name)
        if status is None:
            print(f"{name} was deleted", flush=True)
            return 1
        state, job_status = str(status.get("jobDeploymentStatus", "")), status.get("jobStatus", "")
        if state != previous_state:
            print(f"{name}: {state} {job_status} {status.get('message', '')}".strip(), flush=True)
        if state == "Complete" and job_status == "STOPPED":
            time.sleep(api.poll_s)  # the last metrics are scraped
            api.delete_cluster(status["rayClusterName"])
            print(f"{name}: its cluster {status['rayClusterName']} is deleted", flush=True)
        if state in ("Complete", "Failed", "ValidationFailed"):
            return 0 if state == "Complete" and job_status == "SUCCEEDED" else 1
        previous_state = state
        time.sleep(api.poll_s)


def main(arguments: list[str]) -> int:
    """Create and follow the job of the manifest in the file arguments[0]; return the exit code."""
    api = Api(f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}")
    try:
        return follow(api, yaml.safe_load(Path(arguments[0]).read_text()), os.environ["RAYJOB_NAME"])
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except _NO_ANSWER as error:
        print(f"error: the API server does not answer: {error}", file=sys.stderr)
        return 75


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
