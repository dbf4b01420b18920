"""A local Ray requires a token, which other users of the machine cannot read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.flows.workers.interface import Workers

_ENTER = """
import sys
import ray

ray.init(sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
print(ray.get(ray.remote(num_cpus=0)(lambda: 7).remote()))
"""


def test_only_the_owner_can_read_the_folder_of_the_token(ray_cluster: Workers):
    assert (Path.home() / ".ray").stat().st_mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "enters"), [("token", True), ("disabled", False)])
def test_a_local_ray_refuses_clients_without_its_token(ray_cluster: Workers, mode: str, enters: bool):
    import ray

    environment = os.environ | {"RAY_AUTH_MODE": mode}
    command = [sys.executable, "-c", _ENTER, ray.get_runtime_context().gcs_address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert (done.returncode == 0, "7" in done.stdout) == (enters, enters), done.stderr[-2000:]
