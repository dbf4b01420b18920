"""A shadow: another release answers the requests of the service too, off their path, and is compared.

A request waits for nothing of the shadow: its search is put into a short queue, or dropped and counted if the
queue is full. A thread sends the searches to a process of the shadow, see `shadow_process`.
"""

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pipeline.cores import available_memory
from pipeline.errors import ConfigError, DataError, PipelineError, TransientError
from pipeline.index.search.search import OpenRelease
from pipeline.log import announce, size
from pipeline.serve.batches import Found, Search
from pipeline.serve.comparisons import DEPTH, AnswerComparison, Comparisons, verdict
from pipeline.serve.connections import say_seldom
from pipeline.serve.messages import ShadowReport
from pipeline.serve.metrics import ServiceMetrics
from pipeline.serve.shadow_process import Asked, ShadowProcess
from pipeline.store.files.lease import SERVED, lease
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.store.releases.waiting import load_waiting, waiting_state

_WAITING = 64  # searches that wait for the shadow; later ones are dropped
_LIMIT_S = 30.0  # longest time of a search; then its process is ended and started again
_PROCESS_BYTES = 700 << 20  # an interpreter with torch and faiss, measured with a small release
_MAX_NUMBER = 8  # digits of a release's number; longer digits are those of a candidate


class Wanted(NamedTuple):
    """The release of the shadow."""

    name: str
    """for people: release 7, or candidate 12ab..."""
    manifest: ReleaseManifest
    path: str | None
    """path of a candidate's manifest; None for a release"""
    command: str
    """the command that makes it current"""


class Shadow:
    """Compares the answers of the service with those of another release.

    Outcomes of requests: compared; failed (the service answered, the shadow could not); dropped (the queue
    was full); not comparable (vectors, and the shadow is of another space).
    """

    def __init__(self, served: OpenRelease, name: str, metrics: ServiceMetrics) -> None:
        """Make the shadow; `running` opens its release.

        Args:
            name: number of a release, or the first digits of the id of the candidate that waits.
        """
        self._served, self._name, self._metrics = served, name, metrics
        self._queue: queue.Queue[tuple[Search, Found, float]] = queue.Queue(_WAITING)
        self._stop = threading.Event()
        self._is_open = False
        self._state, self._last_sentence = "its release is being opened", ""
        self._wanted: Wanted | None = None
        self._start_comparing(served.number)

    def _start_comparing(self, base: int) -> None:
        self._base, self._comparisons, self._outcomes = base, Comparisons(), Counter[str]()

    def offer(self, search: Search, found: Found, seconds: float) -> None:
        """Let the shadow answer a search, too; never waits.

        Args:
            found: the service's answer.
            seconds: how long the request took.
        """
        if not self._is_open or found.release != self._served.number:  # not of a canary, or of before a swap
            return
        try:
            self._queue.put_nowait((search, found, seconds))
        except queue.Full:
            self._count("dropped")

    @contextlib.contextmanager
    def running(self, poll_s: float) -> Iterator[None]:
        """Open the release, answer searches, and look every `poll_s` seconds whether it is still there."""
        thread = threading.Thread(target=self._run, args=(poll_s,), daemon=True, name="shadow")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(1.0)

    def report(self) -> ShadowReport:
        """Return what is known, and set the metrics."""
        found, outcomes, wanted = self._comparisons.differences(), dict(self._outcomes), self._wanted
        name = wanted.name if wanted else self._name
        for metric, estimate in (
            (self._metrics.shadow_overlap, found.overlap_at_10),
            (self._metrics.shadow_tau, found.kendall_tau),
            (self._metrics.shadow_shift, found.score_shift),
        ):
            for end in ("value", "low", "high"):
                value = getattr(estimate, end, None)
                metric.labels(end).set(float("nan") if value is None else value)
        return ShadowReport(
            name=name,
            state=self._state,
            compared_with=self._base,
            outcomes=outcomes,
            differences=found,
            verdict=verdict(name, self._base, found, outcomes, wanted.command if wanted else ""),
        )

    def _run(self, poll_s: float) -> None:
        while not self._stop.is_set():
            try:
                wanted = find(self._served.releases, self._name)
                self._refuse_served(wanted)
                self._check_memory(wanted)
                with _hold(self._served.releases, wanted):
                    self._work(wanted, poll_s)
            except Exception as error:  # the service must outlive any fault of the shadow
                kind = "" if isinstance(error, PipelineError) else f"{type(error).__name__}: "
                self._say(f"the shadow {self._name} answers nothing: {kind}{error}")
            self._set_open(False)
            self._stop.wait(poll_s)

    def _work(self, wanted: Wanted, poll_s: float) -> None:
        """Open a release and answer searches with it, until it is gone or replaced, or its process ends."""
        self._wanted = wanted
        process = ShadowProcess(self._served.releases, wanted.manifest)
        try:
            process.wait_until_open(self._stop)
            self._set_open(True)
            self._say(f"shadow: {wanted.name} answers the searches of the service, too, and is compared")
            checked_s = time.monotonic()
            while not self._stop.is_set():
                with contextlib.suppress(queue.Empty):
                    self._answer(process, wanted, *self._queue.get(timeout=min(poll_s, 1.0)))
                if time.monotonic() - checked_s >= poll_s:
                    checked_s = time.monotonic()
                    now = find(self._served.releases, self._name)
                    self._refuse_served(now)
                    if now.manifest.id != wanted.manifest.id:  # an erasure has rewritten it
                        return
        finally:
            self._set_open(False)
            process.end()

    def _answer(
        self, process: ShadowProcess, wanted: Wanted, search: Search, found: Found, seconds: float
    ) -> None:
        if found.release != self._base:
            self._start_comparing(found.release)
        if isinstance(search.queries, np.ndarray) and wanted.manifest.space_id != found.space_id:
            self._count("not comparable")
            return
        answers = [[(row["id"], row["score"]) for row in rows[:DEPTH]] for rows in found.answers]
        compared = process.compare(Asked(search, answers, seconds), _LIMIT_S)
        if isinstance(compared, AnswerComparison):
            self._comparisons.add(compared)
            self._count("compared")
            self._metrics.shadow_seconds.observe(compared.second_s)
            return
        self._count("failed")
        reason = f"no answer within {_LIMIT_S:g} s" if compared is None else compared.reason
        say_seldom(
            f"shadow: {wanted.name} cannot answer a search that release {self._base} answered: {reason}"
        )
        if compared is None or not process.is_alive:
            raise TransientError(
                f"shadow: {wanted.name}", "a process that answers", reason, "it is started again"
            )

    def _refuse_served(self, wanted: Wanted) -> None:
        if wanted.manifest.id == self._served.manifest.id:
            raise ConfigError(
                "--shadow",
                "another release than the one that answers",
                wanted.name,
                "nothing is to be compared",
            )

    def _check_memory(self, wanted: Wanted) -> None:
        """Say how much memory the shadow takes. Raises TransientError if there is less."""
        needed, available = memory_of(wanted.manifest), available_memory()
        there = "an unknown amount is" if available is None else f"{size(available)} are"
        sentence = f"shadow: {wanted.name} takes up to {size(needed)} of memory, {there} available"
        if available is not None and needed > available:
            raise TransientError(
                f"shadow: {wanted.name}",
                f"{size(needed)} of memory",
                f"{size(available)}",
                "give the service more, or run the shadow elsewhere",
            )
        self._say(sentence)

    def _count(self, outcome: str) -> None:
        self._outcomes[outcome] += 1
        self._metrics.shadow_requests.labels(outcome).inc()

    def _set_open(self, is_open: bool) -> None:
        self._is_open = is_open
        self._metrics.shadow_open.set(is_open)
        if not is_open:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._queue.get_nowait()

    def _say(self, sentence: str) -> None:
        """Print a sentence, unless it is the last one, and show it as the state."""
        self._state = sentence
        if sentence != self._last_sentence:
            self._last_sentence = sentence
            with contextlib.suppress(OSError):  # standard error is closed or its disk is full
                announce(sentence)


def find(releases: Releases, name: str) -> Wanted:
    """Find a release by number, or the candidate that waits by the first digits of its id.

    Raises:
        DataError: there is none of this name (any more), or it is damaged.
    """
    digits = name.removeprefix("candidates/").rstrip("/")
    uri = releases.store.uri
    if digits == name and digits.isdecimal() and len(digits) <= _MAX_NUMBER:
        number = int(digits)
        return Wanted(
            f"release {number}", releases.get(number), None, f"manta releases rollback {uri} {number}"
        )
    record, current = load_waiting(releases.store), releases.current()
    state = waiting_state(releases.store, releases.commits, current.release if current else None)
    if not digits or record is None or not record.candidate.startswith(digits):
        found = f"candidate {record.candidate}" if record else "none that waits"
        raise DataError(uri, f"a candidate {digits} that waits", found, "see manta releases list")
    if state is None or state.overtaken_by:
        why = state.overtaken_by if state else "it was published"
        raise DataError(uri, f"a candidate {digits} that waits", str(why), "it cannot be published any more")
    command = f"manta releases promote {uri} {record.candidate} --by NAME"
    return Wanted(
        f"candidate {record.candidate}", record.load_manifest(releases.store), record.manifest.path, command
    )


def memory_of(manifest: ReleaseManifest) -> int:
    """Return an upper estimate of the bytes of memory of a shadow's process.

    Index and ids may be mapped and then need less; the encoder's weights are held once more while they are
    loaded.
    """
    files = sum(file.bytes for file in (*manifest.index.files, *manifest.ids))
    return _PROCESS_BYTES + files + 2 * sum(file.bytes for file in manifest.encoder.files)


@contextlib.contextmanager
def _hold(releases: Releases, wanted: Wanted) -> Iterator[None]:
    """Hold a lease on the shadow's release, so that prune keeps its files."""
    facts = (
        {"releases": [wanted.manifest.release]}
        if wanted.path is None
        else {"releases": [], "candidate": wanted.path}
    )
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lease(releases.store, SERVED, **facts))
        except (OSError, PipelineError) as error:  # for instance, the service may only read the root
            announce(f"`manta releases prune` does not know that {wanted.name} is a shadow: {error}")
        yield
