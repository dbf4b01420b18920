"""The whole night on an object store: corpus, encoder, releases and search over s3://, without credentials anywhere, and with commits elsewhere."""

import base64
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pipeline import open_release
from pipeline.config import load_settings
from pipeline.flows.cluster import Cluster
from pipeline.flows.nightly import nightly
from pipeline.flows.preflight import preflight
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.store import open_store
from tests.faults import Faults, FaultyProxy
from tests.flows.conftest import ROOT, job_arguments, sentences, write_corpus
from tests.server import ACCESS_KEY, SECRET_KEY

SECRETS = [word.encode() for word in (ACCESS_KEY, SECRET_KEY, quote(SECRET_KEY, safe=""), base64.b64encode(SECRET_KEY.encode()).decode(), "aws_secret")]


def upload(folder: Path, uri: str) -> None:
    store = open_store(uri)
    for file in folder.rglob("*"):
        if file.is_file():
            store.write(file.relative_to(folder).as_posix(), file.read_bytes())


@pytest.fixture
def arguments(s3: str, encoder: Path, tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    """A job with corpus, encoder and releases below one prefix of the bucket, as command line overrides."""
    base = f"{s3}/{tmp_path.name}"
    upload(write_corpus(tmp_path / "corpus"), f"{base}/corpus")
    upload(encoder, f"{base}/encoder")
    own = (f"corpus.uri={base}/corpus", f"encoder.path={base}/encoder", f"release.root={base}/releases", "gates.recall_at_10=0.5", "whiten.mode=off")
    return lambda *more: (*job_arguments(tmp_path, encoder), *own, *more)


def test_a_night_lives_on_an_object_store_and_tells_nobody_its_credentials(
    cluster: Cluster, arguments: Callable[..., tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
):
    import ray

    pickled: list[bytes] = []
    dumps = pickle.dumps

    def heard(*given: Any, **options: Any) -> bytes:
        pickled.append(dumps(*given, **options))
        return pickled[-1]

    monkeypatch.setattr(pickle, "dumps", heard)
    job = load_settings(Job, None, arguments())
    assert not [check for check in preflight(job, Stages()) if check.problem]
    outcome = nightly(job, Stages())
    assert (outcome.status, outcome.rows) == ("published", 400)
    assert nightly(job, Stages()).status == "unchanged"
    found = open_release(job.release.root).search([sentences(400)[7]], 3).to_pylist()
    assert found[0]["id"] == "row-00007"

    store = open_store(job.release.root)
    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    seen = {
        "stored": [store.read(entry.path) for entry in store.list()], "pickled": [*pickled, dumps(store), dumps(job)],
        "Ray's logs": [file.read_bytes() for file in logs.rglob("*") if file.is_file()], "said": ["".join(capfd.readouterr()).encode()],
    }
    assert min(len(contents) for contents in (seen["stored"], seen["pickled"], seen["Ray's logs"])) > 15
    leaks = {(where, secret) for where, contents in seen.items() for content in contents for secret in SECRETS if secret in content}
    assert not leaks


def manta(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "jobs.cli", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_conditional_writes_neither_night_nor_preflight_goes_on(cluster: Cluster, faulty: FaultyProxy, arguments: Callable[..., tuple[str, ...]]):
    faulty.faults = Faults(drops_conditions=True)
    problems = {check.name: check.problem for check in preflight(load_settings(Job, None, arguments()), Stages()) if check.problem}
    assert list(problems) == ["store"]
    assert "release.commits_root" in str(problems["store"])
    ended = manta("nightly", *arguments())
    assert ended.returncode == 2, ended.stderr
    assert "release.commits_root" in ended.stderr


@pytest.mark.slow
def test_with_commits_elsewhere_a_store_without_conditional_writes_serves(
    faulty: FaultyProxy, arguments: Callable[..., tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    """Every process of it, Ray's workers included, talks to a store that ignores conditions, throttles, and loses answers."""
    faulty.faults = Faults(drops_conditions=True, throttled=0.03, internal=0.03, lost=0.03, seed=1)
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    commits = str(tmp_path / "commits")
    job = arguments(f"release.commits_root={commits}", "cluster.workers=1")
    root = next(each for each in job if each.startswith("release.root=s3")).removeprefix("release.root=")
    for number, rows in enumerate((400, 450), start=1):
        upload(write_corpus(tmp_path / f"corpus-{rows}", rows), root.replace("/releases", "/corpus"))
        ended = manta("nightly", *job, "--json")
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["release"] == number
    apart = ("--commits-root", commits, "--json")
    assert manta("releases", "rollback", "1", root, *apart).returncode == 0
    listed = json.loads(manta("releases", "list", root, *apart).stdout)
    assert (listed["current"], [commit["kind"] for commit in listed["commits"]]) == (1, ["publish", "publish", "rollback"])
    assert manta("releases", "prune", "--keep", "1", "--grace-hours", "0", root, *apart).returncode == 0
    assert json.loads(manta("releases", "list", root, *apart).stdout)["current"] == 1
    found = open_release(root, commits=commits).search([sentences(400)[7]], 1).to_pylist()
    assert found[0]["id"] == "row-00007"
    assert not open_store(root).list("commits")
    assert faulty.met["throttled"] + faulty.met["lost"] + faulty.met["internal"] > 10
