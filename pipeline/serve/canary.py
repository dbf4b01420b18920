"""A canary: a newly published release answers a share of the searches until it has proven itself.

The release of before answers the others. If the new one fails or is slow, the service returns to the release
of before, and says so; if it does well for some time, it takes all searches. The outcome is recorded below
served/, so that other services of the root, and a service that is started again, do not try it again.
"""

import asyncio
import contextlib
import hashlib
import random
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from pipeline.errors import DataError, PipelineError
from pipeline.index.measure.metrics import Proportion
from pipeline.index.search.search import OpenRelease
from pipeline.log import announce
from pipeline.serve.batches import Batches, ClientGone, Found, IsGone, Search
from pipeline.serve.connections import say_seldom
from pipeline.serve.follow import pause_s
from pipeline.serve.messages import CanaryReport
from pipeline.serve.metrics import ServiceMetrics
from pipeline.store.files.base import Store
from pipeline.store.files.lease import SERVED, lease
from pipeline.store.records.sealed_json import Stored
from pipeline.store.releases.commits import Commit, utc_now
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases

_MOST_FAILED = _MOST_SLOW = 0.01  # proportions of requests that may fail, or exceed the bound of the p99
_LEAST_FAULTS = 3  # requests that must fail, or be slow, before anything is concluded
_SLOWER = 2.0  # without --canary-p99-ms: the bound as a multiple of the other release's p99
_LEAST_MS = 20.0  # least bound that is derived from the other release, whose p99 may be a few ms
_LEAST_REQUESTS = 100  # answers of the new release before it takes all searches; and of the other for a bound
_LIMIT_S = 10.0  # then the other release answers, too, and the search counts as failed
_JUDGE_S = 1.0  # seconds between two judgements
_KEPT = 10_000  # durations


@dataclass(frozen=True)
class CanaryOptions:
    """Share, duration and bound of the trial of a new release."""

    share: float
    """proportion of the searches that it answers, above 0 and below 1"""
    minutes: float = 60.0
    """how long it is tried"""
    p99_ms: float | None = None
    """bound of the 99th percentile of its durations; None: twice the p99 of the other release"""


class CanaryOutcome(Stored):
    """The outcome of a canary, which holds for all services of a root."""

    release: int
    outcome: Literal["returned", "passed"]
    base: int
    """the release that had answered before"""
    reason: str
    at: str
    host: str

    @staticmethod
    def path(number: int) -> str:
        """Return the path of the outcome of a release."""
        return f"{SERVED}/canary-{number:08d}.json"


@dataclass
class _Trial:
    """A release that is being tried."""

    release: OpenRelease
    batches: Batches
    held: contextlib.ExitStack
    began_s: float = field(default_factory=time.monotonic)
    judged_s: float = 0.0
    open_requests: int = 0
    answered: int = 0
    failed: int = 0
    durations: "deque[float]" = field(default_factory=lambda: deque(maxlen=_KEPT))
    others: "deque[float]" = field(default_factory=lambda: deque(maxlen=_KEPT))
    """durations at the other release since the trial began"""
    fault: str = ""
    """why the service returns; "" as long as it does not"""


class Canary:
    """Decides which release answers a search, and when a new release takes all of them.

    `search` is called in the event loop, all other methods in the thread that follows the root.

    Attributes:
        returned: number of the current release if the service has returned from it.
    """

    def __init__(
        self, served: OpenRelease, options: CanaryOptions, metrics: ServiceMetrics, poll_s: float
    ) -> None:
        self._served, self._options, self._metrics, self._poll_s = served, options, metrics, poll_s
        self._releases = served.releases
        self._trial: _Trial | None = None
        self._ended: list[_Trial] = []
        self._state = "no release is being tried"
        self._failed, self._failures, self._try_again_s = "", 0, 0.0
        self._returns = False
        self.returned: int | None = None

    async def search(self, batches: Batches, search: Search, is_gone: IsGone, key: str) -> Found:
        """Answer a search by one of the two releases.

        If the new release fails, the other one answers, so no client gets an error because of the canary.

        Args:
            batches: searches of the release of before.
            key: id of the request, such that repeated requests get the same release; "": any release.
        """
        began_s, trial = time.perf_counter(), self._trial
        if trial is None or trial.fault or not self._takes(trial, search, key):
            found = await batches.search(search, is_gone)
            if trial is not None:
                trial.others.append(time.perf_counter() - began_s)
            return found
        trial.open_requests += 1
        try:
            found = await asyncio.wait_for(trial.batches.search(search, is_gone), _LIMIT_S)
        except ClientGone:
            raise
        except Exception as error:
            found = await batches.search(search, is_gone)  # raises if the fault is one of the request
            self._count_failure(trial, error)
            return found
        finally:
            trial.open_requests -= 1
        trial.answered += 1
        trial.durations.append(time.perf_counter() - began_s)
        self._metrics.canary_requests.labels("answered").inc()
        self._judge(trial)
        return found

    def _takes(self, trial: _Trial, search: Search, key: str) -> bool:
        """Return whether the new release answers a search."""
        if search.space_id is not None and search.space_id != trial.release.space_id:
            return False
        if not key:
            return random.random() < self._options.share
        digest = hashlib.sha256(key.encode()).digest()
        return int.from_bytes(digest[:8], "big") < self._options.share * 2**64

    def _count_failure(self, trial: _Trial, error: Exception) -> None:
        trial.failed += 1
        self._metrics.canary_requests.labels("failed").inc()
        reason = f"{type(error).__name__}: {error}"
        say_seldom(f"canary: release {trial.release.number} failed a search that another answered: {reason}")
        trial.judged_s = 0.0
        self._judge(trial)

    def _judge(self, trial: _Trial) -> None:
        """Set the fault of a trial, from which moment on the other release answers all searches."""
        now_s = time.monotonic()
        if trial.fault or now_s - trial.judged_s < _JUDGE_S:
            return
        trial.judged_s = now_s
        asked = trial.answered + trial.failed
        failed = Proportion.of(trial.failed, asked)
        if trial.failed >= _LEAST_FAULTS and failed.low > _MOST_FAILED:
            other = f"release {self._served.number}"
            trial.fault = f"it failed {trial.failed:,} of {asked:,} searches that {other} answered"
            return
        if (bound_ms := self._bound_ms(trial)) is None:
            return
        durations = 1_000 * np.array(trial.durations)
        slow = int((durations > bound_ms).sum())
        if slow >= _LEAST_FAULTS and Proportion.of(slow, len(durations)).low > _MOST_SLOW:
            trial.fault = (
                f"{slow:,} of {len(durations):,} searches took longer than the bound of the p99, "
                f"{bound_ms:.0f} ms (its p99 is {np.quantile(durations, 0.99):.0f} ms)"
            )

    def _bound_ms(self, trial: _Trial) -> float | None:
        if self._options.p99_ms is not None:
            return self._options.p99_ms
        if len(trial.others) < _LEAST_REQUESTS:
            return None
        return max(_LEAST_MS, _SLOWER * 1_000 * float(np.quantile(np.array(trial.others), 0.99)))

    def consider(self, newer: ReleaseManifest | None) -> ReleaseManifest | None:
        """Return the release to which the service swaps now; None if it keeps its release.

        A rollback is followed at once: somebody decided it. Begins, continues and ends the trial of a newly
        published release.

        Args:
            newer: the current release of the root; None if it is the one that is served.
        """
        self._close_ended()
        self._returns = False
        decided = self._decide(newer)
        if decided is None and newer is not None:
            decided = self._base_or(newer)
        if decided is not None or newer is None:
            self._end_trial()
        self.returned = newer.release if newer is not None and self._returns else None
        self._metrics.canary_release.set(self._trial.release.number if self._trial else 0)
        self._metrics.canary_returned.set(self.returned or 0)
        return decided

    def _decide(self, newer: ReleaseManifest | None) -> ReleaseManifest | None:
        if newer is None:
            self._state = "no release is being tried"
            return None
        commit = made_current(self._releases)
        if commit is None or commit.kind != "publish" or commit.release != newer.release:
            return newer
        if (outcome := load_outcome(self._releases.store, newer.release)) is not None:
            return self._follow_outcome(outcome, newer)
        if self._trial is None or self._trial.release.manifest.id != newer.id:
            self._begin(newer)
            return None
        return self._continue(self._trial, newer)

    def _continue(self, trial: _Trial, newer: ReleaseManifest) -> ReleaseManifest | None:
        minutes = (time.monotonic() - trial.began_s) / 60
        if trial.fault:
            outcome = self._record(newer.release, "returned", trial.fault)
            return self._follow_outcome(outcome, newer)
        if minutes >= self._options.minutes and trial.answered >= _LEAST_REQUESTS:
            answered = f"it answered {trial.answered:,} searches in {minutes:.0f} minutes"
            reason = f"{answered}, and failed {trial.failed:,}"
            outcome = self._record(newer.release, "passed", reason)
            return self._follow_outcome(outcome, newer)
        return None

    def _follow_outcome(self, outcome: CanaryOutcome, newer: ReleaseManifest) -> ReleaseManifest | None:
        if outcome.outcome == "passed":
            self._say(f"canary: release {newer.release} takes all searches: {outcome.reason}")
            return newer
        self._end_trial()
        self._returns = True
        self._say(
            f"canary: release {self._served.number} answers all searches again, and release {newer.release} "
            f"is not tried again: {outcome.reason} ({outcome.host}, {outcome.at}). Roll back "
            f"(manta releases rollback ROOT {self._served.number}), or publish a better release; to serve it "
            "nevertheless, roll back to it"
        )
        return None

    def _base_or(self, newer: ReleaseManifest) -> ReleaseManifest | None:
        """Return None if the served release is unchanged in the root; its new manifest if rows of it were
        erased; and `newer` if it is gone, because a pruned release must not be served.
        """
        number = self._served.number
        try:
            base = self._releases.get(number)
        except DataError as error:
            self._returns = False
            self._say(
                f"canary: release {newer.release} takes all searches, as release {number} is gone: {error}"
            )
            return newer
        return None if base.id == self._served.manifest.id else base

    def _begin(self, newer: ReleaseManifest) -> None:
        """Open a release and begin its trial. After an error, it is opened again after growing pauses."""
        self._end_trial()
        if newer.id == self._failed and time.monotonic() < self._try_again_s:
            return
        self._failures = self._failures + 1 if newer.id == self._failed else 1
        self._failed = newer.id
        self._try_again_s = time.monotonic() + pause_s(self._poll_s, self._failures)
        held = contextlib.ExitStack()
        try:
            held.enter_context(lease(self._releases.store, SERVED, release=newer.release))
        except (OSError, PipelineError) as error:  # for instance, the service may only read the root
            announce(f"`manta releases prune` does not know that release {newer.release} is tried: {error}")
        with contextlib.ExitStack() as undo:
            undo.callback(held.close)
            release = self._served.snapshot()
            release.swap(newer)
            release.encode(["a query that loads the encoder"])
            undo.pop_all()
        self._trial = _Trial(release, Batches(release, self._metrics), held)
        self._say(
            f"canary: release {newer.release} answers {self._options.share:.3g} of the searches for "
            f"{self._options.minutes:g} minutes, release {self._served.number} the others"
        )

    def take(self, manifest: ReleaseManifest) -> OpenRelease | None:
        """Return the open release of the last trial if it is `manifest`, so that it is not opened twice."""
        trials = [each for each in (self._trial, *self._ended) if each]
        return next((each.release for each in trials if each.release.manifest.id == manifest.id), None)

    def close(self) -> None:
        """End the trial."""
        self._end_trial()
        for trial in self._ended:
            trial.batches.close()
            trial.held.close()
        self._ended = []

    def report(self) -> CanaryReport:
        """Return what is known."""
        trial = self._trial
        return CanaryReport(
            state=self._state if not trial or not trial.fault else f"canary: {trial.fault}",
            release=trial.release.number if trial else None,
            share=self._options.share,
            answered=trial.answered if trial else 0,
            failed=trial.failed if trial else 0,
            returned=self.returned,
        )

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._ended.append(self._trial)
            self._trial = None

    def _close_ended(self) -> None:
        """Close the trials whose last request was answered, and end their leases."""
        for trial in [each for each in self._ended if not each.open_requests]:
            self._ended.remove(trial)
            trial.batches.close()
            trial.held.close()

    def _record(self, number: int, outcome: Literal["returned", "passed"], reason: str) -> CanaryOutcome:
        """Record an outcome, unless another service has recorded one; return the one that is recorded."""
        store = self._releases.store
        found = CanaryOutcome(
            release=number,
            outcome=outcome,
            base=self._served.number,
            reason=reason,
            at=utc_now(),
            host=socket.gethostname(),
        )
        try:
            if not store.create(CanaryOutcome.path(number), found.to_json()):
                return load_outcome(store, number) or found
        except (OSError, PipelineError) as error:
            say_seldom(f"canary: this service, when it is started again, and others do not know it: {error}")
        return found

    def _say(self, sentence: str) -> None:
        """Print a sentence, unless it is the last one, and show it as the state."""
        if sentence != self._state:
            self._state = sentence
            announce(sentence)


def load_outcome(store: Store, number: int) -> CanaryOutcome | None:
    """Load the outcome of the canary of a release; None if there is none."""
    return CanaryOutcome.load(store, CanaryOutcome.path(number))


def made_current(releases: Releases) -> Commit | None:
    """Return the publication or rollback that made the current release current; None if it is unknown."""
    for number in reversed(releases.commits.numbers()):
        commit = releases.commits.read(number)
        if commit is not None and commit.kind in ("publish", "rollback"):
            return commit
    return None


def _age_s(commit: Commit) -> float:
    """Return the seconds since a commit; 0 if its time cannot be read."""
    with contextlib.suppress(ValueError):
        return (datetime.now(UTC) - datetime.fromisoformat(commit.committed_at)).total_seconds()
    return 0.0


def release_to_start_with(releases: Releases, minutes: float) -> int | None:
    """Return the release that a service with a canary opens first; None: the current one.

    It is the release of before if the canary of the current one has returned, or if the current one was
    published less than `minutes` ago and has no outcome, so that its canary begins, or continues.
    """
    current, commit = releases.get_or_current(None), made_current(releases)
    if commit is None or commit.kind != "publish" or commit.release != current.release:
        return None
    outcome = load_outcome(releases.store, current.release)
    if outcome is not None and outcome.outcome == "passed":
        return None
    if outcome is None and _age_s(commit) > 60 * minutes:
        return None
    base = outcome.base if outcome else current.parent
    while (
        base is not None and (earlier := load_outcome(releases.store, base)) and earlier.outcome == "returned"
    ):
        base = earlier.base
    if base is None:
        return None
    try:
        return releases.get(base).release
    except DataError as error:
        announce(f"canary: release {current.release} is served, because release {base} is gone: {error}")
        return None
