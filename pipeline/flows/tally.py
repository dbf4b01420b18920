"""Rows done inside the items that are still at work, so that a long stage shows progress before its first item is finished."""

import contextlib
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.log import Running

_EVERY_S = 1.0


class _Board:
    """Rows by item; an item that starts again starts from its new count, so nothing is counted twice."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def put(self, item: str, rows: int) -> None:
        self._rows[item] = rows

    def total(self) -> int:
        return sum(self._rows.values())


@dataclass
class Tally:
    """The name under which workers find the board; a value that travels."""

    name: str
    _board: Any = None

    def put(self, item: str, rows: int) -> None:
        """So many rows of `item` are done. Waits for nobody."""
        import ray

        self._board = self._board or ray.get_actor(self.name)
        self._board.put.remote(item, rows)


@contextlib.contextmanager
def tally(bar: Running) -> Iterator[Tally]:
    """A board whose total moves `bar` while the block runs."""
    import ray

    name = f"manta-tally-{uuid.uuid4().hex}"
    board = ray.remote(_Board).options(name=name, num_cpus=0, max_restarts=-1).remote()
    over = threading.Event()

    def follow() -> None:
        while not over.wait(_EVERY_S):
            with contextlib.suppress(ray.exceptions.RayError):      # progress is a courtesy: a lost board stops no night
                bar.reach(ray.get(board.total.remote(), timeout=10))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield Tally(name)
    finally:
        over.set()
        thread.join()
        ray.kill(board)
