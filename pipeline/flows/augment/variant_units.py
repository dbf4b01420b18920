"""Units of variants: edit words or read model outputs, judge them, and write one unit for each corpus
unit.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.augment import NamedAugmenter, WordAugmenter, Words, keyed_rng
from pipeline.augment.keep import Candidates, JudgedVariants, Vectors, judge
from pipeline.config import digest_of
from pipeline.errors import Defect
from pipeline.flows.augment.model_units import model_columns, model_record_path
from pipeline.flows.workers.tasks import progress
from pipeline.flows.workers.worker import loaded
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.augment import AugmentSettings
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.once import put_by_content, remembered
from pipeline.store.schema import KEY, carried_name, kept_name
from pipeline.store.units import CorpusUnit, FileRef, UnitRecord

_ROWS = 2_048  # judged together, so that the encoder's buffers are full
# the last one holds the text before normalization
_OWN = ("id", "text", "text_key", "file", "row", carried_name("text"))

Edit = Callable[[Words, np.random.Generator], Words]


def columns_of(label: str) -> tuple[str, str, str, str]:
    """Names of a variant's columns.

    Returns:
        The kept text, the rejected text, the reason, and the cosine with the original text.
    """
    return f"variant_{label}", f"rejected_{label}", f"reason_{label}", f"similarity_{label}"


def count_name(label: str, outcome: str) -> str:
    """Name of a record's count: variants of a label that are kept, or rejected for a reason."""
    return f"{label}:{outcome}"


@dataclass(frozen=True)
class AssembleUnit:
    """Write the variants of one corpus unit.

    makings: folders of model outputs, by the name of the variants; folder: for the units written here, named
    by everything that decides their content.
    """

    store: Store
    named: tuple[NamedAugmenter, ...]
    makings: Mapping[str, str]
    folder: str
    settings: AugmentSettings
    id_name: str
    dead: FileRef | None
    encoder: EncoderSettings | None
    """for similarities; None if no similarity is bounded"""
    encode: EncodeSettings

    def start(self) -> Callable[[CorpusUnit], UnitRecord]:
        edits = {
            each.name: each.augmenter.start()
            for each in self.named
            if isinstance(each.augmenter, WordAugmenter)
        }
        dead, vectors = Dead.load(self.store, self.dead), self._encoder()

        def work(unit: CorpusUnit) -> UnitRecord:
            dead_rows = dead.rows_of(unit.ordinal)
            path = variant_record_path(self.folder, unit, dead_rows)

            def make() -> UnitRecord:
                with self.store.scratch() as scratch:
                    file = scratch / "augmented.parquet"
                    counts = self._write(unit, dead_rows, file, edits, vectors)
                    rows = unit.rows - len(dead_rows)
                    stem = f"{self.folder}/{unit.sha256[:24]}"
                    stored = put_by_content(self.store, file, stem, rows, digits=12)
                return UnitRecord(
                    name=path.removesuffix(".json"),
                    **dict(stored),
                    counts={"rows": rows, **dict(sorted(counts.items()))},
                    source=unit.sha256,
                )

            return remembered(self.store, path, UnitRecord, make)

        return work

    def _encoder(self) -> Vectors | None:
        if self.encoder is None:
            return None
        encoder = loaded(self.encoder, self.encode)
        return lambda texts: encoder.encode(texts)

    def _write(
        self,
        unit: CorpusUnit,
        dead_rows: np.ndarray,
        file: Path,
        edits: Mapping[str, Edit],
        vectors: Vectors | None,
    ) -> Counter[str]:
        source = pq.read_table(unit.file.open(self.store))
        schema, counts = self._schema(source.schema), Counter[str]()
        made = {name: self._model_outputs(unit, folder) for name, folder in self.makings.items()}
        live = np.ones(unit.rows, bool)
        live[dead_rows] = False
        with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
            for start in range(0, unit.rows, _ROWS):
                rows = pa.array(start + np.flatnonzero(live[start : start + _ROWS]))
                if len(rows):
                    batch, parts = (
                        source.take(rows).combine_chunks(),
                        {name: table.take(rows).combine_chunks() for name, table in made.items()},
                    )
                    judged = judge(_column(batch, "text"), self._candidates(batch, parts, edits), vectors)
                    counts.update(
                        {
                            count_name(label, outcome): count
                            for label, each in judged.items()
                            for outcome, count in each.counts().items()
                        }
                    )
                    writer.write_table(self._table(batch, judged, schema))
                progress(min(start + _ROWS, unit.rows))
        progress(unit.rows, last=True)
        return counts

    def _candidates(
        self, batch: pa.Table, made: Mapping[str, pa.Table], edits: Mapping[str, Edit]
    ) -> dict[str, Candidates]:
        found: dict[str, Candidates] = {}
        for each in self.named:
            keep = each.settings.keep or self.settings.keep
            for number, label in enumerate(each.labels):
                if each.name in made:
                    texts, reasons = (_column(made[each.name], name) for name in model_columns(number))
                else:
                    texts = pa.array(
                        self._edited(batch, each.name, number, edits[each.name]), pa.large_string()
                    )
                    reasons = pa.nulls(batch.num_rows, pa.string())
                found[label] = Candidates(texts, reasons, keep)
        return found

    def _edited(self, batch: pa.Table, name: str, number: int, edit: Edit) -> Iterator[str]:
        generator = partial(keyed_rng, self.settings.seed, name, number)
        return (
            " ".join(edit(text.split(), generator(row_id)))
            for row_id, text in zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)
        )

    def _model_outputs(self, unit: CorpusUnit, folder: str) -> pa.Table:
        record = UnitRecord.load(self.store, model_record_path(folder, unit.sha256))
        if record is None:
            path = self.store.uri_of(model_record_path(folder, unit.sha256))
            raise Defect(path, "the outputs of the models", "no such file", "run again")
        return pq.read_table(record.file.open(self.store))

    def _schema(self, corpus: pa.Schema) -> pa.Schema:
        kept = [corpus.field(name).with_name(kept_name(name)) for name in corpus.names if name not in _OWN]
        own = [
            pa.field(self.id_name, corpus.field("id").type, nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("text_key", KEY, nullable=False),
        ]
        types = (pa.string(), pa.string(), pa.string(), pa.float32())
        labels = (label for each in self.named for label in each.labels)
        return pa.schema(
            [
                *own,
                *kept,
                *(
                    pa.field(name, kind)
                    for label in labels
                    for name, kind in zip(columns_of(label), types, strict=True)
                ),
            ]
        )

    def _table(self, batch: pa.Table, judged: Mapping[str, JudgedVariants], schema: pa.Schema) -> pa.Table:
        kept = [batch[name] for name in batch.column_names if name not in _OWN]
        variants = [
            column
            for each in judged.values()
            for column in (each.kept, each.rejected, each.reasons, each.similarity)
        ]
        arrays = [batch["id"], batch["text"], batch["text_key"], *kept, *variants]
        return pa.table(
            [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
        )


def variant_record_path(folder: str, unit: CorpusUnit, dead_rows: np.ndarray) -> str:
    """Path of the record of a corpus unit's variants while these of its rows are dead."""
    return (
        f"{folder}/{unit.sha256[:24]}{f'-{digest_of(dead_rows.tolist())[:8]}' if len(dead_rows) else ''}.json"
    )


def _column(table: pa.Table, name: str) -> pa.Array:
    """The column as one array."""
    column = table[name].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
