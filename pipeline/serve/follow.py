"""Follow the current release of a root: open a newer one beside the served one, then swap."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pipeline.index.search import OpenRelease
from pipeline.log import say
from pipeline.serve.metrics import ServiceMetrics

_WARM_QUERY = "a query that loads the encoder"


class Follower:
    """Swaps an open release to the root's current one, newer or older (after a rollback).

    A release of another space is refused if `same_space`: clients that send vectors would send wrong ones.

    Attributes:
        refused: number of the current release if it is of another space and was refused.
    """

    def __init__(self, release: OpenRelease, metrics: ServiceMetrics, *, same_space: bool) -> None:
        self._release, self._metrics, self._same_space = release, metrics, same_space
        self._thread = ThreadPoolExecutor(1, "refresh")
        self._last_reason = ""
        self._checked = time.monotonic()
        self.refused: int | None = None
        self._count()

    @property
    def checked_s(self) -> float:
        """Seconds since the root was last read without an error."""
        return time.monotonic() - self._checked

    def warm(self) -> None:
        """Load the encoder and search once, so that the first request is as fast as later ones."""
        self._release.search(np.ones_like(self._release.encode([_WARM_QUERY])), 1)

    async def follow(self, poll_s: float) -> None:
        """Look for another release every `poll_s` seconds, for ever."""
        while True:
            await asyncio.sleep(poll_s)
            await asyncio.get_running_loop().run_in_executor(self._thread, self.refresh)

    def refresh(self) -> None:
        """Swap if there is another release. After an error the served release stays."""
        reason = ""
        try:
            self.refused = None
            if (newer := self._release.newer()) is not None:
                if self._same_space and newer.space_id != self._release.space_id:
                    self.refused = newer.release
                    reason = f"release {newer.release} is of another space ({newer.space_id})"
                else:
                    self._release.swap(newer)
                    self._metrics.swaps.inc()
                    say(f"serves release {self._release.number}: {len(self._release):,} rows")
            self._checked = time.monotonic()
        except Exception as error:  # the service must outlive any fault of the store or of a new release
            self._metrics.failures.inc()
            reason = f"{type(error).__name__}: {error}"
        if reason and reason != self._last_reason:
            say(f"still serves release {self._release.number}: {reason}")
        self._last_reason = reason
        self._count()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

    def _count(self) -> None:
        self._metrics.release.set(self._release.number)
        self._metrics.rows.set(len(self._release))
        self._metrics.refused.set(self.refused or 0)
