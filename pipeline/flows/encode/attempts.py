"""Marks that attempts at a unit leave before they begin: a unit whose attempts keep dying is seen, whoever
they took with them.
"""

import uuid
from dataclasses import dataclass

from pipeline.store.base import Store

LIMIT = 3  # attempts of one run that left only their mark; the next one works in a child process


@dataclass(frozen=True)
class Attempts:
    """The attempts at what is recorded at `record`. run: the driver's; a mark of another run says nothing,
    since that run may have been stopped by hand.
    """

    store: Store
    record: str
    run: str

    def begin(self) -> int:
        """Leave a mark; how many earlier attempts of this run left one and did not end."""
        earlier = [path for path in self._marks() if f"/{self.run}-" in path]
        self.store.write(f"{self._folder()}/{self.run}-{uuid.uuid4().hex[:12]}", b"")
        return len(earlier)

    def end(self) -> None:
        """The unit is done: no mark is left."""
        for path in self._marks():
            self.store.delete(path)

    def _marks(self) -> list[str]:
        return [entry.path for entry in self.store.list(self._folder())]

    def _folder(self) -> str:
        return self.record.removesuffix(".json") + ".attempts"
