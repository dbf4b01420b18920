"""Settings of two releases are compared by their full names, also if an older version stored one of them."""

from typing import Any

from pipeline.flows.night.release_changes import differing_settings
from pipeline.settings import Job
from pipeline.store.manifest import ReleaseManifest


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
