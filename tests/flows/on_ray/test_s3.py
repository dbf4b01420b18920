"""Ray's own logs do not contain the credentials of an object store."""

from pathlib import Path

import pytest

from pipeline.config import load_settings
from pipeline.flows.workers.interface import Workers
from pipeline.settings import Job
from tests.flows.conftest import ON_RAY
from tests.flows.night.test_s3 import assert_no_secret, seen_of_a_night, uploaded


@pytest.mark.slow
def test_no_log_of_ray_contains_the_credentials(
    ray_cluster: Workers,
    s3: str,
    encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    import ray

    seen = seen_of_a_night(
        load_settings(Job, None, (*uploaded(s3, tmp_path, encoder), ON_RAY)), monkeypatch, capfd
    )
    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    assert_no_secret(seen | {"Ray's logs": [file.read_bytes() for file in logs.rglob("*") if file.is_file()]})
