"""Units of variants, one for each corpus unit: edit words or read model outputs, and judge the results."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.augment import Edit, NamedAugmenter, WordAugmenter, keyed_rng
from pipeline.augment.keep import Candidates, JudgedVariants, Vectors, judge
from pipeline.config import digest_of
from pipeline.flows.augment.model_units import model_columns, read_outputs
from pipeline.flows.workers.tasks import progress
from pipeline.flows.workers.worker import loaded
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.arrays import one_chunk
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.once import put_by_content, remembered
from pipeline.store.schema import KEY, carried_name, kept_name
from pipeline.store.stored import FileRef
from pipeline.store.units import CorpusUnit, UnitRecord

_ROWS = 2_048  # judged together, so that the encoder's buffers are full
# columns of a corpus unit that are not kept columns; the last one holds the text before normalization
_OWN = ("id", "text", "text_key", "file", "row", carried_name("text"))
_TYPES = (pa.string(), pa.string(), pa.string(), pa.float32())


def columns_of(label: str) -> tuple[str, str, str, str]:
    """Names of a variant's columns.

    Returns:
        The kept text, the rejected text, the reason, and the cosine with the original text.
    """
    return f"variant_{label}", f"rejected_{label}", f"reason_{label}", f"similarity_{label}"


@dataclass(frozen=True)
class AssembleUnit:
    """Write the variants of one corpus unit."""

    store: Store
    named: tuple[NamedAugmenter, ...]
    makings: Mapping[str, str]
    """folders of model outputs, by the name of the variants"""
    folder: str
    """folder for the units written here, named by everything that decides their content"""
    seed: int
    id_name: str
    dead: FileRef | None
    encoder: EncoderSettings | None
    """for similarities; None if no similarity is bounded"""
    encode: EncodeSettings

    def start(self) -> Callable[[CorpusUnit], UnitRecord]:
        """Load thesauri, dead rows and encoder, and return the work on a unit."""
        edits = {
            each.name: each.augmenter.start()
            for each in self.named
            if isinstance(each.augmenter, WordAugmenter)
        }
        dead = Dead.load(self.store, self.dead)
        vectors = None if self.encoder is None else loaded(self.encoder, self.encode).encode

        def work(unit: CorpusUnit) -> UnitRecord:
            dead_rows = dead.rows_of(unit.ordinal)
            suffix = f"-{digest_of(dead_rows.tolist())[:8]}" if len(dead_rows) else ""
            name = f"{self.folder}/{unit.sha256[:24]}{suffix}"

            def make() -> UnitRecord:
                with self.store.scratch() as scratch:
                    file = scratch / "augmented.parquet"
                    counts = self._write(unit, dead_rows, file, edits, vectors)
                    stem = f"{self.folder}/{unit.sha256[:24]}"
                    stored = dict(put_by_content(self.store, file, stem, counts["rows"], digits=12))
                return UnitRecord(name=name, **stored, counts=counts, source=unit.sha256)

            return remembered(self.store, f"{name}.json", UnitRecord, make)

        return work

    def _write(
        self,
        unit: CorpusUnit,
        dead_rows: np.ndarray,
        file: Path,
        edits: Mapping[str, Edit],
        vectors: Vectors | None,
    ) -> Counter[str]:
        source = pq.read_table(unit.file.open(self.store))
        schema, counts = self._schema(source.schema), Counter(rows=unit.rows - len(dead_rows))
        made = {name: read_outputs(self.store, folder, unit) for name, folder in self.makings.items()}
        live = np.ones(unit.rows, bool)
        live[dead_rows] = False
        with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
            for start in range(0, unit.rows, _ROWS):
                rows = pa.array(start + np.flatnonzero(live[start : start + _ROWS]))
                if len(rows):
                    batch = source.take(rows).combine_chunks()
                    parts = {name: table.take(rows) for name, table in made.items()}
                    judged = judge(one_chunk(batch["text"]), self._candidates(batch, parts, edits), vectors)
                    for label, each in judged.items():
                        counts.update({f"{label}:{outcome}": n for outcome, n in each.counts().items()})
                    writer.write_table(self._table(batch, judged, schema))
                progress(min(start + _ROWS, unit.rows))
        progress(unit.rows, last=True)
        return counts

    def _candidates(
        self, batch: pa.Table, made: Mapping[str, pa.Table], edits: Mapping[str, Edit]
    ) -> dict[str, Candidates]:
        found: dict[str, Candidates] = {}
        for each in self.named:
            for number, label in enumerate(each.labels):
                if each.name in made:
                    texts, reasons = (one_chunk(made[each.name][name]) for name in model_columns(number))
                else:
                    texts = pa.array(
                        self._edited(batch, each.name, number, edits[each.name]), pa.large_string()
                    )
                    reasons = pa.nulls(batch.num_rows, pa.string())
                found[label] = Candidates(texts, reasons, each.keep)
        return found

    def _edited(self, batch: pa.Table, name: str, number: int, edit: Edit) -> Iterator[str]:
        generator = partial(keyed_rng, self.seed, name, number)
        return (
            " ".join(edit(text.split(), generator(row_id)))
            for row_id, text in zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)
        )

    def _schema(self, corpus: pa.Schema) -> pa.Schema:
        kept = [corpus.field(name).with_name(kept_name(name)) for name in corpus.names if name not in _OWN]
        own = [
            pa.field(self.id_name, corpus.field("id").type, nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("text_key", KEY, nullable=False),
        ]
        variants = [
            pair
            for each in self.named
            for label in each.labels
            for pair in zip(columns_of(label), _TYPES, strict=True)
        ]
        return pa.schema([*own, *kept, *variants])

    def _table(self, batch: pa.Table, judged: Mapping[str, JudgedVariants], schema: pa.Schema) -> pa.Table:
        kept = [batch[name] for name in batch.column_names if name not in _OWN]
        variants = [(each.kept, each.rejected, each.reasons, each.similarity) for each in judged.values()]
        arrays = [batch["id"], batch["text"], batch["text_key"], *kept, *chain.from_iterable(variants)]
        return pa.table(
            [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
        )
