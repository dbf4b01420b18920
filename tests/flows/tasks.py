"""Tasks for the tests of flows; in a module that a worker can import."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.errors import DataError


@dataclass(frozen=True)
class Double:
    """Twice the item, with the worker's process id; 13 is bad data."""

    def start(self) -> Callable[[int], tuple[int, int]]:
        return self._work

    def _work(self, item: int) -> tuple[int, int]:
        if item == 13:
            raise DataError("item 13", "luck", "13", "take another number")
        return 2 * item, os.getpid()
