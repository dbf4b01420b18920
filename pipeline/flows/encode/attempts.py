"""Mark the attempts at a unit, so that a unit whose attempts keep dying is noticed."""

import uuid
from dataclasses import dataclass

from pipeline.store.base import Store

LIMIT = 3  # attempts of one run that did not end; the next one works in a child process


@dataclass(frozen=True)
class Attempts:
    """The attempts at one unit.

    Attributes:
        store: of the unit.
        record: path of the unit's record.
        run: id of the driver's run. Marks of other runs are ignored: these may have been stopped by hand.
    """

    store: Store
    record: str
    run: str

    def begin(self) -> int:
        """Leave a mark. Returns the number of earlier attempts of this run that did not end."""
        earlier = [path for path in self._marks() if f"/{self.run}-" in path]
        self.store.write(f"{self._folder}/{self.run}-{uuid.uuid4().hex[:12]}", b"")
        return len(earlier)

    def end(self) -> None:
        """Delete all marks: the unit is done."""
        for path in self._marks():
            self.store.delete(path)

    def _marks(self) -> list[str]:
        return [entry.path for entry in self.store.list(self._folder)]

    @property
    def _folder(self) -> str:
        return self.record.removesuffix(".json") + ".attempts"
