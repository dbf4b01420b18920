"""The summary of a release: a small file beside its manifest."""

from pipeline.store.records.sealed_json import Stored
from pipeline.store.releases.fixed_query_results import Answers
from pipeline.store.releases.manifest import ReleaseManifest


class Summary(Stored):
    """The metrics of a release, for comparisons and for the page of all releases."""

    release: int
    rows: int
    counts: dict[str, int] = {}
    """numbers of new, changed and deleted rows"""
    recall_at_10: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    index_kind: str
    index_bytes: int
    seconds: float | None = None
    """duration of the night"""
    answers: tuple[Answers, ...] = ()
    """answers to the fixed queries, with which the next night compares its answers"""

    @classmethod
    def of(cls, manifest: ReleaseManifest) -> "Summary":
        """Summarize a manifest. Recall and latency are None unless a gate measured them."""
        values = {name: gate.value for name, gate in manifest.gates.items()}
        return cls(
            release=manifest.release,
            rows=manifest.rows,
            counts={name: manifest.counts.get(name, 0) for name in ("new", "changed", "deleted")},
            recall_at_10=values.get("recall_at_10"),
            p99_ms=values.get("p99_ms"),
            index_kind=manifest.index.kind,
            index_bytes=sum(file.bytes for file in manifest.index.files),
        )


def summary_path(number: int) -> str:
    """Return the path of a release's summary; prune removes it with the release."""
    return f"releases/{number:08d}/summary.json"
