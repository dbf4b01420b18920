"""The page over all releases, index.html at the root, made of the commits and a small summary per release."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pipeline.config import digest_of
from pipeline.errors import DataError, PipelineError
from pipeline.index.measured import Measured
from pipeline.log import say
from pipeline.store.answers import Answers
from pipeline.store.base import Store
from pipeline.store.commits import Commit
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.once import remembered
from pipeline.store.release import Releases
from pipeline.store.stored import Stored

PAGE = "index.html"
_VERSION = 1  # of the page; pages of other versions are written again
_EVENTS = 20  # rollbacks and holds on the page
_READERS = 16  # small files read at once, since each read over a network waits for an answer
_CHANGES = ("new", "changed", "deleted")


class Summary(Stored):
    """The metrics of a release for the page of all releases, so that it need not read large manifests."""

    release: int
    rows: int
    counts: dict[str, int] = {}
    recall_at_10: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    index_kind: str
    index_bytes: int
    seconds: float | None = None
    """duration of the night"""
    answers: tuple[Answers, ...] = ()
    """to the fixed queries; the next night's report compares its own with them"""

    @classmethod
    def of(cls, manifest: ReleaseManifest) -> "Summary":
        """Return what the manifest contains: of recall and latency, the values that gates judged."""
        values = {name: gate.value for name, gate in manifest.gates.items()}
        return cls(
            release=manifest.release,
            rows=manifest.rows,
            counts={name: manifest.counts.get(name, 0) for name in _CHANGES},
            recall_at_10=values.get("recall_at_10"),
            p99_ms=values.get("p99_ms"),
            index_kind=manifest.index.kind,
            index_bytes=sum(file.bytes for file in manifest.index.files),
        )


def summary_path(number: int) -> str:
    """Return the path of a release's summary; prune removes it with the release."""
    return f"releases/{number:08d}/summary.json"


def keep_summary(
    store: Store,
    manifest: ReleaseManifest,
    measured: Measured,
    seconds: float,
    answers: tuple[Answers, ...] = (),
) -> None:
    """Store the summary of a new release, with metrics that no gate judged and the duration of the night.

    An error is logged, not raised: the page then lacks these metrics.
    """
    night = {
        "recall_at_10": measured.recall["10"].value,
        "p50_ms": round(measured.latency.p50_ms, 3),
        "p99_ms": round(measured.latency.p99_ms, 3),
        "seconds": round(seconds, 3),
        "answers": answers,
    }
    try:
        store.write(summary_path(manifest.release), Summary.of(manifest).model_copy(update=night).to_json())
    except (PipelineError, OSError) as error:
        say(f"the summary of release {manifest.release} is not kept: {error}")


def load_summary(store: Store, number: int) -> Summary | None:
    """Load the summary of release `number`; None if it is missing, or damaged, which is logged."""
    try:
        return Summary.load(store, summary_path(number))
    except DataError as error:
        say(f"the report compares less with release {number}: {error}")
        return None


@contextmanager
def refreshed(releases: Releases) -> Iterator[None]:
    """Refresh the page after the block, unless it raises."""
    yield
    refresh(releases)


def refresh(releases: Releases) -> None:
    """Write the page again, atomically, if it does not show the present state of the store.

    An error is logged, not raised.
    """
    try:
        _refresh(releases)
    except (PipelineError, OSError) as error:
        say(f"{PAGE} is not refreshed: {error}")


def _refresh(releases: Releases) -> None:
    store, state = releases.store, _state(releases)  # read first: later changes make the next page differ
    try:
        shown = store.read(PAGE).decode(errors="replace")
    except FileNotFoundError:
        shown = ""
    if f"<!-- state {state} -->" in shown or not (history := releases.history()):
        return
    from pipeline.report.releases import Event, Overview, ReleaseRow, render  # unused by most nights

    def event(commit: Commit) -> Event:
        return Event(commit.kind, int(commit.release or 0), _minute(commit.committed_at), commit.reason)

    numbers, published = releases.numbers(), {commit.release: commit for commit in reversed(history)}
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(lambda number: _summary(releases, number), reversed(numbers)))
    rows = [
        ReleaseRow(
            number=summary.release,
            published=_minute(published[summary.release].committed_at)
            if summary.release in published
            else "",
            rows=summary.rows,
            **{name: summary.counts.get(name, 0) for name in _CHANGES},
            recall_at_10=summary.recall_at_10,
            p99_ms=summary.p99_ms,
            index_kind=summary.index_kind,
            index_bytes=summary.index_bytes,
            seconds=summary.seconds,
        )
        for summary in found
        if summary is not None
    ]
    current, held = releases.current(), releases.commits.hold()
    overview = Overview(
        root=store.uri,
        current=current.release if current else None,
        held=event(held) if held else None,
        rows=tuple(rows),
        events=tuple(event(commit) for commit in reversed(history) if commit.kind != "publish")[:_EVENTS],
        pruned=len({commit.release for commit in history}) - len(numbers),
        damage=str(releases.commits.damage() or ""),
        state=state,
    )
    store.write(PAGE, render(overview).encode())


def _state(releases: Releases) -> str:
    """Return a digest of everything that the page shows, from two listings."""
    stored = (*releases.commits.store.list("commits", ".json"), *releases.store.list("releases", ".json"))
    return digest_of(
        [_VERSION, releases.store.uri, [[entry.path, entry.size, entry.stamp] for entry in stored]]
    )


def _summary(releases: Releases, number: int) -> Summary | None:
    """Load or make the summary of a release; None if it, or the manifest that it is made of, was changed."""
    store, path = releases.store, summary_path(number)
    try:
        return remembered(store, path, Summary, lambda: Summary.of(releases.get(number)))
    except DataError:
        return None


def _minute(committed_at: str) -> str:
    """Return the time of a commit, in UTC, as 2026-11-22 11:24."""
    return committed_at[:16].replace("T", " ")
