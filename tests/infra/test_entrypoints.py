"""Every job that an entrypoint of infra/kuberay names runs in the submitted Ray job, not in the pod that
submits it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.kuberay_line import is_whole, kuberay_line
from tests.infra.manifests import jobs

# Instead of `ray`: knows no job yet, and runs a submitted one as Ray does, by a shell of another machine.
_RAY = r"""#!{python}
import os, subprocess, sys
action, words = sys.argv[2], sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
if action == "status":
    sys.exit(1)
if action == "submit":
    line = subprocess.list2cmdline(words)
    subprocess.run(line, shell=True, env=os.environ | {{"RAN_IN": "job"}}, start_new_session=True)
"""
_PYTHON = r"""#!/bin/sh
[ "$1" = -c ] && exit 0
echo "$RAN_IN $*" >> "$RECORD"
exit "$EXIT_CODE"
"""


def ran(entrypoint: str, folder: Path, exit_code: int = 0) -> list[str]:
    """Run KubeRay's line with a `python` that only records where it ran, and with which arguments."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {"ray": _RAY.format(python=sys.executable), "python": _PYTHON}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    record = folder / "record"
    record.touch()
    environment = {"RAN_IN": "submitter", "RECORD": str(record), "EXIT_CODE": str(exit_code)}
    line = kuberay_line(entrypoint, "http://head:8265", "manta-1")
    subprocess.run(
        line,
        env=environment | {"PATH": f"{programs}:{os.environ['PATH']}"},
        timeout=20,
        check=False,
        capture_output=True,
    )
    return record.read_text().splitlines()


@pytest.mark.parametrize("name", jobs())
def test_every_job_of_an_entrypoint_runs_inside_the_submitted_job(name: str, tmp_path: Path):
    entrypoint = jobs()[name]["entrypoint"]
    named = re.findall(r"python (-m jobs\.[^&']*[^&' ])", entrypoint)
    assert named
    assert ran(entrypoint, tmp_path) == [f"job {each}" for each in named]


@pytest.mark.parametrize("name", [name for name, spec in jobs().items() if "preflight" in spec["entrypoint"]])
def test_a_night_whose_preflight_fails_does_not_begin(name: str, tmp_path: Path):
    [only] = ran(jobs()[name]["entrypoint"], tmp_path, exit_code=2)
    assert only.startswith("job -m jobs.preflight ")


@pytest.mark.parametrize("name", jobs())
def test_every_entrypoint_is_passed_on_whole(name: str):
    assert is_whole(jobs()[name]["entrypoint"])


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python -m jobs.preflight && exec python -m jobs.nightly",
        "python -m jobs.preflight; python -m jobs.nightly",
        "python -m jobs.nightly | tee log",
        "python -m jobs.nightly > log",
        "python -m jobs.nightly &",
        "python -m jobs.nightly\npython -m jobs.encode",
        "python -m jobs.nightly # every night",
        "python -m jobs.nightly corpus.uri=s3://corpus/*.parquet",
        "python -m jobs.nightly corpus.uri=s3://$BUCKET/captions",
        "bash -c 'exec python -m jobs.nightly corpus.uri=s3://$BUCKET/captions'",
        'bash -c "python -m jobs.preflight && exec python -m jobs.nightly"',
        "bash -c 'exec python -m jobs.nightly corpus.uri=s3://`hostname`/captions'",
        "python -m jobs.nightly encoder.prompt='a",
        "python -m jobs.nightly ~/night.yaml",
        "python -m jobs.nightly {a,b}",
    ],
)
def test_an_entrypoint_on_which_a_shell_would_act_is_refused(entrypoint: str):
    assert not is_whole(entrypoint)
