"""Resolve the ids of a night's rows, one bucket of ids at a time."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.base import Store
from pipeline.store.units import Changes, Corpus
from pipeline.text.corpus.keys import bucket_count, id_hashes, read_bucket
from pipeline.text.corpus.read_pass import ReadPass
from pipeline.text.corpus.resolve_ids import (
    ABSENT,
    ChangeExamples,
    ResolvedBucket,
    line_schema,
    resolve_bucket,
)
from pipeline.text.corpus.spill import write_arrow


@dataclass
class BucketPass:
    """Resolve bucket after bucket, and collect the results."""

    store: Store
    scratch: Path
    parent: Corpus | None
    names: list[str]
    """names of the files in tonight's listing"""
    kept: list[str]
    """names of the files that were not read tonight"""
    reuse: bool
    """whether unchanged rows keep their addresses"""
    files: list[Path] = field(default_factory=list)
    """an Arrow file of each bucket's lines"""
    wanted: np.ndarray = field(init=False)
    """mask by position of the rows read tonight that need a row in a unit"""
    changes: Changes = field(default_factory=Changes)
    examples: list[ChangeExamples] = field(default_factory=list)
    dead: list[np.ndarray] = field(default_factory=list)
    """addresses that are no longer live"""
    duplicates: list[pa.Table] = field(default_factory=list)
    """rows that lost their id"""
    _revived: list[pa.Table] = field(default_factory=list)

    def resolve(self, read: ReadPass, kept_rows: int) -> None:
        """Resolve the ids of the rows read tonight and of the `kept_rows` good rows of other files."""
        id_type = read.schema.field("id").type
        schema = line_schema(id_type)
        keys = self.parent.keys if self.parent and self.parent.id_type == str(id_type) else ()
        if self.parent and not keys:
            self.changes += Changes(deleted=self.parent.rows)
        count = max(bucket_count(read.rows + kept_rows), len(keys))
        self.wanted = np.zeros(read.rows, dtype=bool)
        position = read.rows
        for part, lines in enumerate(read.lines.buckets(count)):
            before = self._lines_before(read_bucket(self.store, keys, part, count, id_hashes), schema)
            now = schema.empty_table() if lines is None else lines
            position = self._collect(resolve_bucket(before, now, reuse=self.reuse), position)

    def revived(self) -> pa.Table:
        """Rows of unchanged files that lost their id on an earlier night and are live now.

        Columns: file, row, position, text_key. Their positions follow those of the rows read tonight.
        """
        return pa.concat_tables(self._revived)

    def _lines_before(self, table: pa.Table | None, schema: pa.Schema) -> pa.Table:
        """Last night's lines of a bucket; `file` is ABSENT if the file is gone or was read tonight."""
        if table is None:
            return schema.empty_table()
        index = pc.index_in(table["file"], value_set=pa.array(self.names, pa.string()))
        kept = pc.is_in(table["file"], value_set=pa.array(self.kept, pa.string()))
        columns = {name: table[name] for name in ("id", "text_key", "carried", "row", "address")}
        columns["file"] = pc.if_else(kept, index, ABSENT)
        columns["position"] = pa.repeat(pa.scalar(ABSENT, pa.int64()), table.num_rows)
        return pa.table(columns, schema=schema)

    def _collect(self, bucket: ResolvedBucket, next_position: int) -> int:
        """Add a bucket's results; its revived rows get positions from `next_position` on.

        Returns:
            The next free position.
        """
        positions = bucket.lines["position"].to_numpy().copy()
        was_read = positions[bucket.wanted] != ABSENT
        self.wanted[positions[bucket.wanted[was_read]]] = True
        revived = bucket.wanted[~was_read]
        stop = next_position + len(revived)
        positions[revived] = np.arange(next_position, stop)
        index = bucket.lines.schema.get_field_index("position")
        lines = bucket.lines.set_column(index, "position", pa.array(positions))
        self._revived.append(lines.select(["file", "row", "position", "text_key"]).take(pa.array(revived)))
        self.dead.append(bucket.dead)
        self.duplicates.append(bucket.duplicates())
        self.changes += bucket.changes
        new = [each.with_positions(positions) for each in bucket.examples]
        self.examples = list(map(ChangeExamples.__add__, self.examples, new)) if self.examples else new
        self.files.append(write_arrow(lines, self.scratch / f"bucket-{len(self.files)}.arrow"))
        return stop
