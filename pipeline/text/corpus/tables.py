"""The tables of a corpus on their way into the store: rows by id, rows by text, and what new units can copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.store.base import Store, sha256_of
from pipeline.store.schema import writer_options
from pipeline.store.units import CorpusUnit, FileRef
from pipeline.text.corpus.keys import COPIES, TEXTS, bucket_count, by_text, keys_schema, read_part
from pipeline.text.corpus.resolve_ids import NOWHERE
from pipeline.text.corpus.spill import mapped
from pipeline.text.corpus.unit_writer import Rolling


@dataclass(frozen=True)
class Tables:
    """Written below `folder` of the store, a bucket in memory at a time."""

    store: Store
    scratch: Path
    folder: str

    def keys(self, buckets: Sequence[Path], rolling: Rolling, names: Sequence[str]) -> list[FileRef]:
        """Settled buckets as the key table, with the addresses that the rolled rows got; names: of the files in tonight's listing."""
        schema, files = keys_schema(rolling.schema.field("id").type), pa.array(names, pa.string())
        written = []
        for number, bucket in enumerate(map(mapped, buckets)):
            position, address = (
                bucket["position"].to_numpy(),
                pc.fill_null(bucket["address"], NOWHERE).to_numpy().copy(),
            )
            rolled = (position != NOWHERE) & (address == NOWHERE) & ~bucket["lost"].to_numpy()
            address[rolled] = rolling.addresses(position[rolled])
            columns = [
                bucket["id"],
                bucket["text_key"],
                bucket["carried"],
                files.take(bucket["file"].combine_chunks()),
                bucket["row"],
            ]
            table = pa.table([*columns, pa.array(address, mask=address == NOWHERE)], schema=schema)
            written.append(self._stored(table, f"{self.folder}/{number:05d}.parquet"))
        return written

    def texts(
        self, rolling: Rolling, old: Sequence[FileRef], living: np.ndarray
    ) -> tuple[list[FileRef], list[CorpusUnit]]:
        """The table of texts over all units, and the new units with what they can copy. old: last night's table; living: ordinals of its units that live on."""
        rows = rolling.starts[-1]
        count = max(bucket_count(rows + (sum(ref.rows for ref in old) if len(living) else 0)), len(old))
        sources = np.lib.format.open_memmap(
            self.scratch / "sources.npy", mode="w+", dtype=np.int64, shape=(max(rows, 1),)
        )
        sources[:] = NOWHERE
        written = []
        for part, new in enumerate(rolling.texts.buckets(count)):
            known = read_part(self.store, old, part, count, by_text)
            tables = (
                []
                if known is None
                else [known.filter(pa.array(np.isin(known["address"].to_numpy() >> 32, living)))]
            )
            if new is not None:
                _find(new, known, sources)
                tables.append(
                    pa.table(
                        [new["text_key"], pa.array(rolling.addresses_of(new["place"].to_numpy()))],
                        schema=TEXTS,
                    )
                )
            table = pa.concat_tables(tables) if tables else TEXTS.empty_table()
            table = table.take(
                pc.sort_indices(table, sort_keys=[("text_key", "ascending"), ("address", "ascending")])
            )
            written.append(self._stored(table, f"{self.folder}/texts-{part:05d}.parquet"))
        return written, [
            self._with_copies(rolling.units[number], sources[start:stop])
            for number, start, stop in rolling.of_units()
        ]

    def put(self, file: Path, path: str, rows: int) -> FileRef:
        """The local file, stored at `path`."""
        reference = FileRef(path=path, sha256=sha256_of(file), rows=rows, bytes=file.stat().st_size)
        self.store.put(file, path)
        return reference

    def _with_copies(self, unit: CorpusUnit, sources: np.ndarray) -> CorpusUnit:
        rows = np.flatnonzero(sources != NOWHERE)
        if not len(rows):
            return unit
        table = pa.table([pa.array(rows, pa.int32()), pa.array(sources[rows])], schema=COPIES)
        return unit.model_copy(
            update={"copies": self._stored(table, f"{self.folder}/copies-{unit.name}.parquet")}
        )

    def _stored(self, table: pa.Table, path: str) -> FileRef:
        place = self.scratch / "table.parquet"
        pq.write_table(table.combine_chunks(), place, **writer_options(table.schema))
        return self.put(place, path, table.num_rows)


def _find(new: pa.Table, known: pa.Table | None, sources: np.ndarray) -> None:
    """For each new row's place the address of a row with its text, where one is known."""
    if known is None or not known.num_rows:
        return
    found = pc.index_in(new["text_key"], value_set=known["text_key"]).combine_chunks()
    there = found.is_valid().to_numpy(zero_copy_only=False)
    sources[new["place"].to_numpy()[there]] = known["address"].to_numpy()[found.drop_null().to_numpy()]
