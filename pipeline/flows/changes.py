"""What changed between two corpora, row by row: their key tables compared a bucket at a time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.store.store import Store
from pipeline.store.units import Corpus
from pipeline.text.keys import id_hashes


@dataclass(frozen=True)
class Changes:
    """Live rows by id. changed: the id was there with another text."""

    new: int = 0
    changed: int = 0
    deleted: int = 0
    unchanged: int = 0

    def __add__(self, other: "Changes") -> "Changes":
        return Changes(self.new + other.new, self.changed + other.changed, self.deleted + other.deleted, self.unchanged + other.unchanged)


@dataclass(frozen=True)
class CompareKeys:
    """Changes from the first corpus (None: there was none) to the second. Memory is that of one bucket of each."""

    store: Store

    def start(self) -> Callable[[tuple[Corpus | None, Corpus]], Changes]:
        return self._work

    def _work(self, corpora: tuple[Corpus | None, Corpus]) -> Changes:
        before, now = corpora
        if before is None:
            return Changes(new=now.rows)
        parts = max(len(before.keys), len(now.keys))        # powers of two: the finer buckets nest in the coarser
        changes = Changes()
        for part in range(parts):
            changes += compare(self._live(before, part, parts), self._live(now, part, parts))
        return changes

    def _live(self, corpus: Corpus, part: int, parts: int) -> pa.Table:
        """(id as text, text_key) of the live rows of the `part`-th of `parts` buckets."""
        if not corpus.keys:
            return pa.table({"id": pa.array([], pa.string()), "text_key": pa.array([], pa.binary(16))})
        bucket = corpus.keys[part * len(corpus.keys) // parts]
        table = pq.read_table(self.store.open(bucket.path), columns=["id", "text_key", "unit"])
        live = table.filter(table["unit"].is_valid()).select(["id", "text_key"])
        rows = live.set_column(0, "id", live["id"].cast(pa.string())).combine_chunks()
        if len(corpus.keys) == parts or not rows.num_rows:
            return rows
        bits = np.uint64(parts.bit_length() - 1)
        return rows.filter(pa.array((id_hashes(rows["id"].combine_chunks()) >> (np.uint64(64) - bits)) == part))


def compare(before: pa.Table, now: pa.Table) -> Changes:
    """Changes between two tables of (id, text_key) with unique ids."""
    both = before.rename_columns(["id", "before"]).join(now.rename_columns(["id", "now"]), "id", join_type="inner")
    unchanged = pc.sum(pc.equal(both["before"], both["now"])).as_py() or 0
    return Changes(new=now.num_rows - both.num_rows, changed=both.num_rows - unchanged, deleted=before.num_rows - both.num_rows, unchanged=unchanged)
