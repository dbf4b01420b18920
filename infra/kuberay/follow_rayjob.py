"""Create tonight's RayJob and follow it to its end; runs in the pod of cronjob.yaml.

    python follow_rayjob.py rayjob-nightly.yaml

The job's name is RAYJOB_NAME. If a job of that name exists, an earlier pod of the same tick created it: it is
followed as it is. Exit codes: 0 the night succeeded, 1 it failed, 2 the API server refused the job, 75 the
API server did not answer for too long.
"""

import json
import os
import ssl
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import yaml

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOK_S = 30.0
_PATIENCE_S = 1_800.0  # without an answer; a control plane that is being upgraded comes back within it
_RETRIED = (408, 429, 500, 502, 503, 504)


class Refused(Exception):
    """The API server refused a request, and would refuse it again."""


@dataclass(frozen=True)
class Api:
    """The RayJobs of one namespace."""

    server: str
    account: Path = _ACCOUNT
    look_s: float = _LOOK_S
    patience_s: float = _PATIENCE_S

    def create(self, job: dict[str, Any]) -> bool:
        """Create the job. Returns False if a job of that name exists."""
        return self._call("POST", "", job) is not None

    def status(self, name: str) -> dict[str, Any]:
        """Return the status that the operator gave the job; empty before the first."""
        found: dict[str, Any] = (self._call("GET", f"/{name}") or {}).get("status") or {}
        return found

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the answer; None for a name that is taken.

        A request without an answer is repeated until the patience ends; then the last error is raised.
        """
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return self._once(method, path, body)
            except HTTPError as error:
                if error.code == 409:
                    return None
                if error.code not in _RETRIED:
                    reason = error.read().decode(errors="replace")[:500]
                    raise Refused(f"{method} {error.url}: {error.code} {reason}") from error
                if time.monotonic() > deadline:
                    raise
            except (URLError, TimeoutError, ConnectionError):
                if time.monotonic() > deadline:
                    raise
            time.sleep(self.look_s)

    def _once(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        namespace = (self.account / "namespace").read_text().strip()
        token = (self.account / "token").read_text().strip()  # renewed every hour
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = Request(
            f"{self.server}/apis/ray.io/v1/namespaces/{namespace}/rayjobs{path}",
            json.dumps(body).encode() if body else None,
            headers,
            method=method,
        )
        with urlopen(request, timeout=30, context=self._trusted()) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _trusted(self) -> ssl.SSLContext | None:
        if not self.server.startswith("https:"):
            return None
        return ssl.create_default_context(cafile=str(self.account / "ca.crt"))


def follow(api: Api, manifest: dict[str, Any], name: str) -> int:
    """Create the job `name` from the manifest unless it exists, and return its exit code at its end."""
    made = api.create(manifest | {"metadata": manifest["metadata"] | {"name": name}})
    print(f"{'created' if made else 'following'} rayjob {name}", flush=True)
    before = ""
    while True:
        status = api.status(name)
        now = str(status.get("jobDeploymentStatus", ""))
        if now != before:
            print(
                f"{name}: {now} {status.get('jobStatus', '')} {status.get('message', '')}".strip(), flush=True
            )
        if now in ("Complete", "Failed", "ValidationFailed"):
            return 0 if now == "Complete" and status.get("jobStatus") == "SUCCEEDED" else 1
        before = now
        time.sleep(api.look_s)


def main(arguments: list[str]) -> int:
    """Create and follow the job of the manifest that is named, and return the exit code."""
    api = Api(f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}")
    try:
        return follow(api, yaml.safe_load(Path(arguments[0]).read_text()), os.environ["RAYJOB_NAME"])
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # URLError and HTTPError are both
        print(f"error: the API server does not answer: {error}", file=sys.stderr)
        return 75


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
