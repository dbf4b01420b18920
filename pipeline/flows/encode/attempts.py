"""Count the attempts to encode a unit, one file each, so that a unit whose attempts keep dying is noticed."""

import uuid
from dataclasses import dataclass

from pipeline.store.base import Store

MAX_ATTEMPTS = 3  # unfinished attempts of one run; the next one encodes in a child process


@dataclass(frozen=True)
class Attempts:
    """The attempts to encode one unit, as one file each beside the unit's record.

    Attributes:
        store: store of the unit.
        record: path of the unit's record.
        run: id of the driver's run. Attempts of other runs do not count: users may have stopped those runs.
    """

    store: Store
    record: str
    run: str

    def begin(self) -> int:
        """Record an attempt. Returns the number of earlier attempts of this run that did not end."""
        earlier = [path for path in self._files() if f"/{self.run}-" in path]
        self.store.write(f"{self._folder}/{self.run}-{uuid.uuid4().hex[:12]}", b"")
        return len(earlier)

    def end(self) -> None:
        """Delete the files of all attempts: the unit is done."""
        for path in self._files():
            self.store.delete(path)

    def _files(self) -> list[str]:
        return [entry.path for entry in self.store.list(self._folder)]

    @property
    def _folder(self) -> str:
        return self.record.removesuffix(".json") + ".attempts"
