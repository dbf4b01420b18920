"""The whole night on object stores: corpus, encoder, releases and search. Credentials are stored
nowhere, and commits may be in another store.
"""

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

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.planning.preflight import preflight
from pipeline.flows.workers.interface import Workers
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from tests.conftest import CommandResult
from tests.faults import Faults, FaultyProxy
from tests.flows.conftest import ON_RAY, ROOT, job_arguments, sentences, write_corpus
from tests.server import ACCESS_KEY, AZURE_KEY, SECRET_KEY, SERVERS

SECRETS = [
    word.encode()
    for word in (
        ACCESS_KEY,
        SECRET_KEY,
        quote(SECRET_KEY, safe=""),
        base64.b64encode(SECRET_KEY.encode()).decode(),
        "aws_secret",
    )
]


def upload(folder: Path, uri: str) -> None:
    store = open_store(uri)
    for file in folder.rglob("*"):
        if file.is_file():
            store.write(file.relative_to(folder).as_posix(), file.read_bytes())


def uploaded(bucket: str, folder: Path, encoder: Path) -> tuple[str, ...]:
    """Return a job with corpus, encoder and releases below one prefix of the bucket, as overrides."""
    base = f"{bucket}/{folder.name}"
    upload(write_corpus(folder / "corpus"), f"{base}/corpus")
    upload(encoder, f"{base}/encoder")
    own = (
        f"corpus.uri={base}/corpus",
        f"encoder.path={base}/encoder",
        f"release.root={base}/releases",
        "gates.recall_at_10=0.5",
        "whiten.mode=off",
    )
    return (*job_arguments(folder, encoder), *own)


@pytest.fixture
def arguments(s3: str, encoder: Path, tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    overrides = uploaded(s3, tmp_path, encoder)
    return lambda *more: (*overrides, *more)


def seen_of_a_night(
    job: Job, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> dict[str, list[bytes]]:
    """Run a preflight, two nights and a search. Returns everything that they store, pickle and log."""
    pickled: list[bytes] = []
    dumps = pickle.dumps

    def recording_dumps(*arguments: Any, **options: Any) -> bytes:
        pickled.append(dumps(*arguments, **options))
        return pickled[-1]

    monkeypatch.setattr(pickle, "dumps", recording_dumps)
    assert not [check for check in preflight(job, Stages()) if check.problem]
    outcome = nightly(job, Stages())
    assert (outcome.status, outcome.rows) == ("published", 400)
    assert nightly(job, Stages()).status == "unchanged"
    found = open_release(job.release.root).search([sentences(400)[7]], 3).to_pylist()
    assert found[0]["id"] == "row-00007"
    store = open_store(job.release.root)
    stored = [store.read(entry.path) for entry in store.list()]
    return {
        "stored": stored,
        "pickled": [*pickled, dumps(store), dumps(job)],
        "said": ["".join(capfd.readouterr()).encode()],
    }


def assert_no_secret(seen: dict[str, list[bytes]]) -> None:
    assert min(len(contents) for name, contents in seen.items() if name != "said") > 15
    assert not {
        (kind, secret)
        for kind, contents in seen.items()
        for content in contents
        for secret in SECRETS
        if secret in content
    }


def test_a_night_runs_on_an_object_store_without_storing_its_credentials(
    cluster: Workers,
    arguments: Callable[..., tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    assert_no_secret(seen_of_a_night(load_settings(Job, None, arguments()), monkeypatch, capfd))


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_night_and_preflight_refuse_a_store_without_conditional_writes(
    cluster: Workers,
    faulty: FaultyProxy,
    arguments: Callable[..., tuple[str, ...]],
    manta: Callable[..., CommandResult],
):
    faulty.faults = Faults(drops_conditions=True)
    problems = {
        check.name: check.problem
        for check in preflight(load_settings(Job, None, arguments()), Stages())
        if check.problem
    }
    assert list(problems) == ["store"]
    assert "release.commits_root" in str(problems["store"])
    ended = manta("nightly", *arguments())
    assert ended.code == 2, ended.err
    assert "release.commits_root" in ended.err


@pytest.mark.slow
def test_a_store_without_conditional_writes_works_with_separate_commits(
    faulty: FaultyProxy,
    arguments: Callable[..., tuple[str, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """All processes, also Ray's, use a store that ignores conditions, throttles, and loses answers."""
    faulty.faults = Faults(drops_conditions=True, throttled=0.03, internal=0.03, lost=0.03, seed=1)
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    commits = str(tmp_path / "commits")
    job = arguments(f"release.commits_root={commits}", "cluster.workers=1", ON_RAY)
    root = next(argument for argument in job if argument.startswith("release.root=s3")).removeprefix(
        "release.root="
    )
    for number, rows in enumerate((400, 450), start=1):
        upload(write_corpus(tmp_path / f"corpus-{rows}", rows), root.replace("/releases", "/corpus"))
        ended = process("nightly", *job, "--json")
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["release"] == number
    apart = ("--commits-root", commits, "--json")
    assert process("releases", "rollback", "1", root, *apart).returncode == 0
    listed = json.loads(process("releases", "list", root, *apart).stdout)
    assert (listed["current"], [commit["kind"] for commit in listed["commits"]]) == (
        1,
        ["publish", "publish", "rollback"],
    )
    assert process("releases", "prune", "--keep", "1", "--grace-hours", "0", root, *apart).returncode == 0
    assert json.loads(process("releases", "list", root, *apart).stdout)["current"] == 1
    release = open_release((root, commits))
    found = release.search([sentences(400)[7]], 1).to_pylist()
    assert found[0]["id"] == "row-00007"
    assert not open_store(root).list("commits")
    assert faulty.met["throttled"] + faulty.met["lost"] + faulty.met["internal"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SERVERS))
def test_nights_run_on_each_object_store_by_its_own_conditional_writes(
    kind: str,
    bucket_at: Callable[[str], str],
    encoder: Path,
    cache: Path,
    tmp_path: Path,
    manta: Callable[..., CommandResult],
):
    """Corpus, encoder and releases are in the store; every night is a process of its own."""
    bucket = bucket_at(kind)
    job = uploaded(bucket, tmp_path, encoder)
    root, corpus = f"{bucket}/{tmp_path.name}/releases", f"{bucket}/{tmp_path.name}/corpus"

    def night() -> dict[str, Any]:
        ended = process("nightly", *job, "--json")
        assert ended.returncode == 0, ended.stderr
        return dict(json.loads(ended.stdout))

    def run(*arguments: str) -> dict[str, Any]:
        ended = manta("releases", *arguments, "--json")
        assert ended.code == 0, ended.err
        return dict(json.loads(ended.out))

    assert night()["release"] == 1
    assert night()["status"] == "unchanged"
    upload(write_corpus(tmp_path / "more", 450), corpus)
    assert night()["release"] == 2
    run("verify", root)
    run("rollback", "1", root)
    run("prune", "--keep", "1", "--grace-hours", "0", root)
    listed = run("list", root)
    assert (listed["current"], len(listed["commits"])) == (1, 3)
    found = open_release(root).search([sentences(400)[7]], 1).to_pylist()
    assert found[0]["id"] == "row-00007"
    stored = open_store(root)
    secret = AZURE_KEY.encode()
    assert not [entry.path for entry in stored.list() if secret in stored.read(entry.path)]
