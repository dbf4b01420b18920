"""The command line with which KubeRay 1.7 submits a job: `BuildJobSubmitCommand` of its
controllers/ray/common/job.go, which joins words and the entrypoint by spaces, without quoting any.
"""

import re

_UNREAD = re.compile(r"(?:[\w@%+=:,./ -]|'[\w@%+=:,./ &|;<>()*?\[\]{}~#!-]*')*")


def kuberay_line(entrypoint: str, address: str, job_id: str) -> list[str]:
    """Return the command of the submitter's container, which sends the entrypoint to the job API."""
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
