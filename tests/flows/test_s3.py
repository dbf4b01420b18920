"""The whole night on an object store: corpus, encoder, releases and search over s3://."""

import os
from pathlib import Path

from pipeline import open_release
from pipeline.config import load_settings
from pipeline.flows.cluster import Cluster
from pipeline.flows.nightly import nightly
from pipeline.flows.preflight import preflight
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.store import open_store
from tests.flows.conftest import job_arguments, sentences, write_corpus


def upload(folder: Path, uri: str) -> None:
    store = open_store(uri)
    for file in folder.rglob("*"):
        if file.is_file():
            store.write(file.relative_to(folder).as_posix(), file.read_bytes())


def test_a_night_lives_on_an_object_store(s3: str, cluster: Cluster, encoder: Path, tmp_path: Path):
    base = f"{s3}/{tmp_path.name}"
    upload(write_corpus(tmp_path / "corpus"), f"{base}/corpus")
    upload(encoder, f"{base}/encoder")
    own = (f"corpus.uri={base}/corpus", f"encoder.path={base}/encoder", f"release.root={base}/releases", "gates.recall_at_10=0.5", "whiten.mode=off")
    job = load_settings(Job, None, (*job_arguments(tmp_path, encoder), *own))
    assert not [check for check in preflight(job, Stages()) if check.problem]
    outcome = nightly(job, Stages())
    assert (outcome.status, outcome.rows) == ("published", 400)
    assert nightly(job, Stages()).status == "unchanged"
    found = open_release(f"{base}/releases").search([sentences(400)[7]], 3).to_pylist()
    assert found[0]["id"] == "row-00007"
    key = os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    written = [open_store(base).read(entry.path) for entry in open_store(base).list("releases") if not entry.path.startswith("releases/encoders")]
    assert not any(b"aws" in content.lower() or b'"' + key + b'"' in content for content in written), "no credentials in what is stored"
