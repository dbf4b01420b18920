"""Two releases are compared: their settings by full names, also if an older version lacks one, and drift."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.flows.night.release_changes import differing_settings, measure_drift
from pipeline.settings import Job
from pipeline.stats.moments import Moments
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import ReleaseManifest


def manifest(settings: dict[str, Any]) -> ReleaseManifest:
    return ReleaseManifest.model_construct(settings=settings)


def test_a_setting_that_an_older_version_lacks_has_its_default():
    now = Job.model_validate({"gates": {"p99_ms": 5, "relevance": {"queries": "own.csv"}}}).model_dump(
        mode="json"
    )
    before = Job().model_dump(mode="json")
    del before["gates"]["relevance"], before["gates"]["lost_tokens"]
    assert differing_settings(manifest(before), manifest(now)) == {
        "gates.p99_ms": (None, 5.0),
        "gates.relevance.queries": (None, "own.csv"),
    }
    assert differing_settings(manifest(now), manifest(now)) == {}


def test_settings_that_this_version_cannot_read_are_compared_as_stored():
    before, now = {"removed": {"key": 1}, "corpus": {"id": "a"}}, {"corpus": {"id": "b"}}
    found = differing_settings(manifest(before), manifest(now))
    assert found["removed.key"] == (1, None)
    assert found["corpus.id"] == ("a", "b")


def test_the_drift_from_equal_vectors_is_not_known(tmp_path: Path):
    store = open_store(tmp_path)

    def release(name: str, vectors: np.ndarray) -> ReleaseManifest:
        content = Moments.of(vectors).to_bytes()
        store.write(name, content)
        return ReleaseManifest.model_construct(space_id="space", moments=FileRef.of(name, content))

    equal = release("equal", np.ones((9, 2)))
    others = release("others", np.random.default_rng(0).normal(size=(9, 2)))
    assert measure_drift(store, equal, others) is None
    assert measure_drift(store, equal, equal) is None
    assert measure_drift(store, others, others).distance < 1e-6
