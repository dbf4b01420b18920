"""Second attempts at items that take much longer than their peers, as on a slow node.

A pool gets a few rows more than it has items. A worker that takes such a row has nothing else to do: it
waits until all items are done, or begins one that is slow. The first result of an item counts; both are
equal, and outputs are created once, by the faster one.
"""

import time
from typing import Any

import ray

from pipeline.flows.workers.heartbeat import Call

STAND_BY = -1  # number of a row that has no item
_MAX_STAND_BYS = 8  # largest number in a pool: each may add a worker to a pool that can grow
_POLL_S = 0.2  # time between two requests for a slow item
_BEGIN_S = 10.0  # time in which the last items, which a pool hands out together, must have been begun


def stand_by_rows(items: int, workers: int) -> int:
    """Return the number of rows to add for second attempts: none for a single item, which has no peers."""
    return 0 if items < 2 else min(workers - 1, _MAX_STAND_BYS)


class StandBy:
    """The part of a worker that makes second attempts.

    Args:
        call: handle to the board, which knows the slow items.
        items: Ray reference to all pickled items; None in a pool without second attempts.
        count: number of items.
    """

    def __init__(self, call: Call, items: Any, count: int) -> None:
        self._call, self._items, self._count = call, items, count

    def await_slow_item(self) -> int | None:
        """Wait for an item that is slow. Returns None when all items are done, or some are not even begun."""
        deadline = time.monotonic() + _BEGIN_S
        while True:
            try:
                slow = ray.get(self._call.board.claim_slow_item.remote(self._call.name, self._count))
            except ray.exceptions.RayError:  # only the board knows which items are slow
                return None
            if slow.item is not None or slow.all_done:
                return slow.item
            if not slow.all_begun and time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)

    def load(self, item: int) -> bytes:
        """Return the pickled item."""
        pickled: bytes = ray.get(self._items)[item]
        return pickled
