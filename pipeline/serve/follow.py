"""Follow the current release of a root: open a newer release while the old one is served, then swap.

A lease below the root names the served release, so that prune keeps its files.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from pipeline.errors import PipelineError
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.log import announce
from pipeline.serve.metrics import ServiceMetrics
from pipeline.store.files.lease import SERVED, lease
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases

_WARM_QUERY = "a query that loads the encoder"
_LEASE_END_S = 5.0  # longest time that a service waits for the end of its lease
_MAX_PAUSE_S = 600.0  # longest time between two attempts to open the same damaged release
_MAX_DOUBLINGS = 20  # enough for _MAX_PAUSE_S; after 1,024, the product would overflow


class Trials(Protocol):
    """Decides when a new release is served; see `Canary`."""

    def consider(self, newer: ReleaseManifest | None) -> ReleaseManifest | None:
        """Return the release to swap to now; None to keep the served one."""
        ...

    def take(self, manifest: ReleaseManifest) -> OpenRelease | None:
        """Return the release if it is open already."""
        ...


class Follower:
    """Swaps an open release to the root's current one, newer or older (after a rollback).

    A release of another space is refused if `same_space`: clients that send vectors would send wrong ones.
    `held` holds a lease on the release, see `open_held`.

    Attributes:
        refused: number of the current release if it is of another space and was refused.
        published: number of the served release, and the time of its commit if it is known.
    """

    def __init__(
        self,
        release: OpenRelease,
        metrics: ServiceMetrics,
        *,
        same_space: bool,
        held: contextlib.ExitStack,
        canary: Trials | None = None,
    ) -> None:
        self._release, self._metrics, self._same_space = release, metrics, same_space
        self._canary = canary
        self._last_sentence = ""
        self._failed, self._failures, self._try_again = "", 0, 0.0
        self._checked = time.monotonic()
        self._lease = held
        self.refused: int | None = None
        self.published = self._read_published()
        self._count()

    @property
    def checked_s(self) -> float:
        """Seconds since the service last followed, or refused, the current release without an error."""
        return time.monotonic() - self._checked

    def warm(self) -> None:
        """Load the encoder and search once, so that the first request is as fast as later ones."""
        # ones, because encoders of word vectors give zero for unknown words
        self._release.search(np.ones_like(self._release.encode([_WARM_QUERY])), 1)

    @contextlib.contextmanager
    def following(self, poll_s: float) -> Iterator[None]:
        """Look for another release every `poll_s` seconds while the block runs.

        The thread is a daemon: a process that ends does not wait for a release that is being opened.
        """
        stop = threading.Event()

        def follow() -> None:
            while not stop.wait(poll_s):
                self.refresh(poll_s)

        threading.Thread(target=follow, daemon=True, name="refresh").start()
        try:
            yield
        finally:
            stop.set()
            # in a thread, because a store that does not answer is tried again for minutes
            ending = threading.Thread(target=self._lease.close, daemon=True, name="end lease")
            ending.start()
            ending.join(_LEASE_END_S)

    def refresh(self, poll_s: float) -> None:
        """Swap if there is another release. After an error the service keeps the served release."""
        sentence = ""
        try:
            newer = self._release.newer()
            is_refused = newer is not None and self._same_space and newer.space_id != self._release.space_id
            self.refused = newer.release if newer is not None and is_refused else None
            if newer is not None and is_refused:
                why = (
                    f"release {newer.release} is of another space ({newer.space_id}); give the clients its "
                    "encoder and restart the service, start it with --any-space, or roll back"
                )
                sentence = f"still serves release {self._release.number}: {why}"
            wanted = self._wanted(None if is_refused else newer)
            if wanted is not None and self._swap(wanted, poll_s):
                sentence = f"serves release {self._release.number}: {len(self._release):,} rows"
            if wanted is None or wanted.id == self._release.manifest.id:
                self._checked = time.monotonic()
        except Exception as error:  # the service must outlive any fault of the store or of a new release
            self._metrics.failures.inc()
            why = f"{type(error).__name__}: {error}"
            sentence = f"still serves release {self._release.number}: {why}"
        self._report(sentence)

    def _wanted(self, newer: ReleaseManifest | None) -> ReleaseManifest | None:
        """Return the release to swap to; None for none, for instance while it is a canary."""
        return newer if self._canary is None else self._canary.consider(newer)

    def _swap(self, newer: ReleaseManifest, poll_s: float) -> bool:
        """Swap to a release.

        Returns False without an attempt if opening it failed a short time ago, because an attempt is costly.
        """
        if newer.id == self._failed and time.monotonic() < self._try_again:
            return False
        self._failures = self._failures + 1 if newer.id == self._failed else 1
        self._failed = newer.id
        self._try_again = time.monotonic() + pause_s(poll_s, self._failures)
        with _hold(self._release.releases, newer.release) as held:  # before its files are opened
            opened = self._canary.take(newer) if self._canary else None
            self._release.swap(newer) if opened is None else self._release.adopt(opened)
            held, self._lease = self._lease, held.pop_all()
        held.close()
        self._failed = ""
        self._metrics.swaps.inc()
        self.published = self._read_published()
        return True

    def _report(self, sentence: str) -> None:
        """Print the sentence, unless it equals the last printed one, and set the metrics."""
        try:
            if sentence and sentence != self._last_sentence:
                announce(sentence)
            self._last_sentence = sentence or self._last_sentence
            self._count()
        except OSError:  # standard error is closed or its disk is full; searches go on
            self._metrics.failures.inc()

    def _read_published(self) -> tuple[int, str | None]:
        number = self._release.number
        commit = self._release.releases.commits.read(number)
        return number, commit.committed_at if commit else None

    def _count(self) -> None:
        self._metrics.release.set(self._release.number)
        self._metrics.rows.set(len(self._release))
        self._metrics.refused.set(self.refused or 0)


@contextlib.contextmanager
def open_held(
    root: str | tuple[str, str], choose: Callable[[Releases], int | None] = lambda _: None
) -> Iterator[tuple[OpenRelease, contextlib.ExitStack]]:
    """Open the current release of a root, with a lease on it that is written before its files are read.

    The lease ends with the block, unless a `Follower` took the lease and ended it earlier.

    Args:
        choose: returns the number of another release to open first, or None; the release follows the root in
            any case.
    """
    releases = Releases.open(*((root,) if isinstance(root, str) else root))
    if (other := choose(releases)) is not None:
        with _hold(releases, other) as held:
            yield open_release(releases, other).following(), held
        return
    while True:
        number = releases.get_or_current(None).release
        with _hold(releases, number) as held:
            # prune keeps the current release; another release is current if a night has published since
            if releases.get_or_current(None).release != number:
                continue
            release = open_release(releases)
            if release.number == number:
                yield release, held
                return


def _hold(releases: Releases, number: int) -> contextlib.ExitStack:
    """Hold a lease on a release, until the returned stack is closed."""
    held = contextlib.ExitStack()
    try:
        held.enter_context(lease(releases.store, SERVED, release=number))
    except (OSError, PipelineError) as error:  # for instance, the service may only read the root
        why = f"no lease can be written ({error})"
        announce(f"`manta releases prune` does not know that release {number} is served: {why}")
    return held


def pause_s(poll_s: float, failures: int) -> float:
    """Return the seconds to wait before a release that failed to open `failures` times is tried again."""
    return min(poll_s * 2 ** min(failures, _MAX_DOUBLINGS), _MAX_PAUSE_S)
