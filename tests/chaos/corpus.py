"""A corpus folder that changes from night to night: files are added, rewritten, renamed and deleted, texts
change, ids repeat, and some rows are invalid.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.flows.conftest import sentences
from tests.flows.encode.poisoned import KILLS, RAISES

Row = tuple[str | None, str | None]

_TEXTS = sentences(4_000, seed=5)


@dataclass
class ChangingCorpus:
    """The files as rows, and the folder that holds them.

    Every written file gets another modification time, so that a night always notices the change.
    """

    folder: Path
    rng: np.random.Generator
    files: dict[str, list[Row]] = field(default_factory=dict)
    _ids: int = 0
    _clock: int = 0
    _names: int = 0

    def write_first_files(self, rows: int, files: int) -> None:
        """Write the corpus of the first night."""
        self.folder.mkdir(parents=True)
        for part in np.array_split(np.arange(rows), files):
            self._write(self._new_name(), [self._new_row() for _ in part])

    def change(self, edits: int) -> list[str]:
        """Make some random edits. Returns their kinds."""
        return [self._edit() for _ in range(edits)]

    def grow(self) -> list[str]:
        """Add new rows and change some rows, so that the night has work to do. Returns the kinds of edits."""
        self._appended("")
        self._changed(min(self.files))
        return ["appended", "changed"]

    def poison(self) -> None:
        """Add a file with a text that kills its worker and a text that raises an error."""
        self._write(
            self._new_name(), [("killer", KILLS), ("raiser", RAISES), *(self._new_row() for _ in range(4))]
        )

    def _edit(self) -> str:
        kinds: dict[str, Callable[[str], None]] = {
            "appended": self._appended,
            "rewritten": self._rewritten,
            "renamed": self._renamed,
            "deleted": self._deleted,
            "changed": self._changed,
            "doubled": self._doubled,
            "moved": self._moved,
            "spoilt": self._spoilt,
            "came back": self._repeat_texts,
        }
        kind = str(self.rng.choice(list(kinds)))
        kinds[kind](str(self.rng.choice(sorted(self.files))))
        return kind

    def _appended(self, name: str) -> None:
        self._write(self._new_name(), [self._new_row() for _ in range(self._random_count(30))])

    def _rewritten(self, name: str) -> None:
        rows = self.files[name]
        kept = [rows[index] for index in self.rng.permutation(len(rows))[: max(1, len(rows) * 3 // 4)]]
        self._write(name, [*kept, *(self._new_row() for _ in range(self._random_count(8)))])

    def _renamed(self, name: str) -> None:
        rows = self.files[name]
        self._remove(name)
        self._write(self._new_name(), rows)

    def _deleted(self, name: str) -> None:
        if len(self.files) > 3:
            self._remove(name)

    def _changed(self, name: str) -> None:
        rows = list(self.files[name])
        for index in self.rng.integers(len(rows), size=self._random_count(6)):
            rows[index] = (rows[index][0], str(self.rng.choice(_TEXTS)))
        self._write(name, rows)

    def _doubled(self, name: str) -> None:
        """Repeat ids of other rows: of several rows with one id, the first by file name is live."""
        existing = [row for rows in self.files.values() for row in rows if row[0]]
        repeated = [existing[index] for index in self.rng.integers(len(existing), size=self._random_count(6))]
        self._write(name, [*self.files[name], *((row[0], str(self.rng.choice(_TEXTS))) for row in repeated)])

    def _moved(self, name: str) -> None:
        rows, other = self.files[name], str(self.rng.choice(sorted(self.files)))
        if other != name and len(rows) > 2:
            half = len(rows) // 2
            self._write(name, rows[:half])
            self._write(other, [*self.files[other], *rows[half:]])

    def _spoilt(self, name: str) -> None:
        self._write(
            name, [*self.files[name], (self._new_id(), ""), (None, "no id at all"), (self._new_id(), None)]
        )

    def _repeat_texts(self, name: str) -> None:
        """Add rows whose texts other rows have, or had on an earlier night."""
        count = self._random_count(5)
        rows = [(self._new_id(), str(self.rng.choice(_TEXTS[: self._ids]))) for _ in range(count)]
        self._write(name, [*self.files[name], *rows])

    def _new_row(self) -> Row:
        new_id = self._new_id()
        return new_id, _TEXTS[self._ids % len(_TEXTS)]

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids:05d}"

    def _new_name(self) -> str:
        self._names += 1
        return f"{self.rng.integers(100):02d}-{self._names:03d}.parquet"

    def _random_count(self, most: int) -> int:
        return int(self.rng.integers(1, most + 1))

    def _write(self, name: str, rows: list[Row]) -> None:
        columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
        pq.write_table(pa.table(columns, names=["id", "text"]), self.folder / name)
        self._clock += 1
        os.utime(self.folder / name, ns=(self._clock * 10**9, self._clock * 10**9))
        self.files[name] = rows

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink()
        del self.files[name]
