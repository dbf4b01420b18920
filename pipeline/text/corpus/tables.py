"""Write the tables of a corpus: rows by id, rows by text, and the rows of new units that can be copied."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.store.address import ordinal_of
from pipeline.store.arrays import one_chunk
from pipeline.store.base import Store, sha256_of
from pipeline.store.schema import writer_options
from pipeline.store.stored import FileRef
from pipeline.store.units import CorpusUnit
from pipeline.text.corpus.keys import COPIES, TEXTS, bucket_count, keys_schema, read_bucket, text_hashes
from pipeline.text.corpus.resolve_ids import ABSENT
from pipeline.text.corpus.spill import map_arrow
from pipeline.text.corpus.unit_writer import UnitWriter


@dataclass(frozen=True)
class Tables:
    """Write tables below a folder of the store, with one bucket in memory at a time."""

    store: Store
    scratch: Path
    folder: str

    def keys(self, buckets: Sequence[Path], writer: UnitWriter, names: Sequence[str]) -> list[FileRef]:
        """Write the table of rows by id.

        Args:
            buckets: files of the resolved buckets.
            writer: has the addresses of the new rows.
            names: of the files in tonight's listing.
        """
        schema, files = keys_schema(writer.schema.field("id").type), pa.array(names, pa.string())
        written = []
        for number, bucket in enumerate(map(map_arrow, buckets)):
            position = bucket["position"].to_numpy()
            address = pc.fill_null(bucket["address"], ABSENT).to_numpy().copy()
            new = (position != ABSENT) & (address == ABSENT) & ~bucket["duplicate"].to_numpy()
            address[new] = writer.addresses(position[new])
            columns = {name: bucket[name] for name in ("id", "text_key", "carried", "row")}
            columns["file"] = files.take(one_chunk(bucket["file"]))
            columns["address"] = pa.array(address, mask=address == ABSENT)
            written.append(
                self._store(pa.table(columns, schema=schema), f"{self.folder}/{number:05d}.parquet")
            )
        return written

    def texts(
        self, writer: UnitWriter, old: Sequence[FileRef], kept_units: np.ndarray
    ) -> tuple[list[FileRef], list[CorpusUnit]]:
        """Write the table of rows by text, and for each new unit the rows whose text was encoded before.

        Args:
            writer: has the new units.
            old: last night's table.
            kept_units: ordinals of last night's units that are kept.

        Returns:
            (the table's buckets, the new units with references to their copies).
        """
        rows = writer.starts[-1]
        count = max(bucket_count(rows + (sum(ref.rows for ref in old) if len(kept_units) else 0)), len(old))
        sources = np.lib.format.open_memmap(
            self.scratch / "sources.npy", mode="w+", dtype=np.int64, shape=(max(rows, 1),)
        )
        sources[:] = ABSENT
        written = []
        for part, new in enumerate(writer.texts.buckets(count)):
            known = read_bucket(self.store, old, part, count, text_hashes)
            tables = [TEXTS.empty_table()]
            if known is not None:
                unit = ordinal_of(known["address"].to_numpy())
                tables.append(known.filter(pa.array(np.isin(unit, kept_units))))
            if new is not None:
                _find_sources(new, known, sources)
                addresses = pa.array(writer.addresses_of(new["new_row"].to_numpy()))
                tables.append(pa.table([new["text_key"], addresses], schema=TEXTS))
            table = pa.concat_tables(tables).sort_by([("text_key", "ascending"), ("address", "ascending")])
            written.append(self._store(table, f"{self.folder}/texts-{part:05d}.parquet"))
        bounds = zip(writer.units, pairwise(writer.starts), strict=True)
        return written, [self._with_copies(unit, sources[start:stop]) for unit, (start, stop) in bounds]

    def put(self, file: Path, path: str, rows: int) -> FileRef:
        """Store a local file at `path`."""
        reference = FileRef(path=path, sha256=sha256_of(file), rows=rows, bytes=file.stat().st_size)
        self.store.put(file, path)
        return reference

    def _with_copies(self, unit: CorpusUnit, sources: np.ndarray) -> CorpusUnit:
        rows = np.flatnonzero(sources != ABSENT)
        if not len(rows):
            return unit
        table = pa.table([pa.array(rows, pa.int32()), pa.array(sources[rows])], schema=COPIES)
        path = f"{self.folder}/copies-{unit.name}.parquet"
        return unit.model_copy(update={"copies": self._store(table, path)})

    def _store(self, table: pa.Table, path: str) -> FileRef:
        file = self.scratch / "table.parquet"
        pq.write_table(table.combine_chunks(), file, **writer_options(table.schema))
        return self.put(file, path, table.num_rows)


def _find_sources(new: pa.Table, known: pa.Table | None, sources: np.ndarray) -> None:
    """Set `sources` of each new row to the address of a row with the same text, if one is known."""
    if known is None or not known.num_rows:
        return
    found = one_chunk(pc.index_in(new["text_key"], value_set=known["text_key"]))
    has_source = found.is_valid().to_numpy(zero_copy_only=False)
    addresses = known["address"].to_numpy()[found.drop_null().to_numpy()]
    sources[new["new_row"].to_numpy()[has_source]] = addresses
