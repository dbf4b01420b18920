"""The page over all releases, index.html at the root: made of the commits and of one small summary for each
release.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pipeline.config import digest_of
from pipeline.errors import DataError, PipelineError
from pipeline.log import say
from pipeline.store.answers import Answers
from pipeline.store.base import Store
from pipeline.store.commits import Commit
from pipeline.store.manifest import Gate, ReleaseManifest
from pipeline.store.once import remembered
from pipeline.store.release import Releases
from pipeline.store.units import Stored

if TYPE_CHECKING:
    from pipeline.report.releases import Event, ReleaseRow

PAGE = "index.html"
_VERSION = 1  # of the page: another one is made anew
_EVENTS = 20  # rollbacks and holds that are shown
_READERS = 16  # small files read at once: over a network each waits for an answer


class Summary(Stored):
    """The figures of one release on the page of all releases.

    Kept beside the manifest, which may be large. seconds: of its night.
    """

    release: int
    rows: int
    counts: dict[str, int] = {}
    recall_at_10: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    index_kind: str
    index_bytes: int
    seconds: float | None = None
    answers: tuple[Answers, ...] = ()
    """to the fixed queries: the next night's report compares its own with them"""

    @classmethod
    def of(cls, manifest: ReleaseManifest) -> "Summary":
        """As far as the manifest tells: what no gate asked for is not in it."""
        return cls(
            release=manifest.release,
            rows=manifest.rows,
            counts={name: manifest.counts.get(name, 0) for name in ("new", "changed", "deleted")},
            recall_at_10=_value(manifest.gates.get("recall_at_10")),
            p99_ms=_value(manifest.gates.get("p99_ms")),
            index_kind=manifest.index.kind,
            index_bytes=sum(file.bytes for file in manifest.index.files),
        )


def _value(gate: Gate | None) -> float | None:
    return None if gate is None or gate.value is None else float(gate.value)


def summary_path(number: int) -> str:
    """Return the path of a release's summary; prune removes it with the release."""
    return f"releases/{number:08d}/summary.json"


def keep_summary(
    store: Store,
    manifest: ReleaseManifest,
    measured: Mapping[str, Any],
    seconds: float,
    answers: tuple[Answers, ...] = (),
) -> None:
    """Record what the manifest of a new release does not hold: what no gate asked for, and how long the night
    took.

    What cannot be written costs the page a figure, and nobody a release.
    """
    night = {
        "recall_at_10": measured["recall"]["10"]["value"],
        "p50_ms": round(measured["latency"]["p50_ms"], 3),
        "p99_ms": round(measured["latency"]["p99_ms"], 3),
        "seconds": round(seconds, 3),
        "answers": answers,
    }
    try:
        store.write(summary_path(manifest.release), Summary.of(manifest).model_copy(update=night).to_json())
    except (PipelineError, OSError) as error:
        say(f"the summary of release {manifest.release} is not kept: {error}")


def load_summary(store: Store, number: int) -> Summary | None:
    """The summary of release `number`; None where it has none, or a damaged one, which is said."""
    try:
        return Summary.load(store, summary_path(number))
    except DataError as error:
        say(f"the report compares less with release {number}: {error}")
        return None


def refresh(releases: Releases) -> None:
    """Write the page again where it does not show the store as it is; all or nothing.

    A page that cannot be written is said, and fails no command.
    """
    try:
        _refresh(releases)
    except (PipelineError, OSError) as error:
        say(f"{PAGE} is not refreshed: {error}")


def _refresh(releases: Releases) -> None:
    state = _state(releases)  # of before anything is read: what comes meanwhile makes the next page differ
    if f"<!-- state {state} -->" in _page_now(releases.store):
        return
    history, numbers = releases.history(), releases.numbers()
    if not history:
        return
    from pipeline.report.releases import (
        Overview,
        render,
    )  # here: a night in which nothing changed draws nothing

    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(lambda number: _summary(releases, number), numbers))
    current, held = releases.current(), releases.commits.hold()
    overview = Overview(
        root=releases.store.uri,
        current=current.release if current else None,
        held=_event(held) if held else None,
        rows=tuple(_row(summary, history) for summary in reversed(found) if summary is not None),
        events=tuple(_event(commit) for commit in reversed(history) if commit.kind != "publish")[:_EVENTS],
        pruned=len({commit.release for commit in history}) - len(numbers),
        damage=str(releases.commits.damage() or ""),
        state=state,
    )
    releases.store.write(PAGE, render(overview).encode())


def _state(releases: Releases) -> str:
    """Digest of all that the page shows, from two listings."""
    stored = (*releases.commits.store.list("commits", ".json"), *releases.store.list("releases", ".json"))
    return digest_of(
        [_VERSION, releases.store.uri, [[entry.path, entry.size, entry.stamp] for entry in stored]]
    )


def _page_now(store: Store) -> str:
    try:
        return store.read(PAGE).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _summary(releases: Releases, number: int) -> Summary | None:
    """Kept, or made of the manifest, for releases of versions that kept none; None where that was changed."""
    store, path = releases.store, summary_path(number)
    try:
        return remembered(store, path, Summary, lambda: Summary.of(releases.get(number)))
    except DataError:
        return None


def _row(summary: Summary, history: Sequence[Commit]) -> "ReleaseRow":
    from pipeline.report.releases import ReleaseRow

    first = next((commit for commit in history if commit.release == summary.release), None)
    return ReleaseRow(
        number=summary.release,
        published=_when(first.committed_at) if first else "",
        rows=summary.rows,
        new=summary.counts.get("new", 0),
        changed=summary.counts.get("changed", 0),
        deleted=summary.counts.get("deleted", 0),
        recall_at_10=summary.recall_at_10,
        p99_ms=summary.p99_ms,
        index_kind=summary.index_kind,
        index_bytes=summary.index_bytes,
        seconds=summary.seconds,
    )


def _event(commit: Commit) -> "Event":
    from pipeline.report.releases import Event

    return Event(commit.kind, int(commit.release or 0), _when(commit.committed_at), commit.reason)


def _when(committed_at: str) -> str:
    """2026-11-22 11:24, in UTC as commits have it."""
    try:
        return datetime.fromisoformat(committed_at).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return committed_at
