"""Write a unit of variants for each corpus unit: edit words or read model outputs, and judge the results."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.augment import Edit, NamedAugmenter, WordAugmenter, keyed_rng
from pipeline.augment.keep import Candidates, JudgedVariants, Vectors, judge
from pipeline.config import digest_of
from pipeline.flows.augment.model_units import model_columns, read_outputs
from pipeline.flows.workers.tasks import progress
from pipeline.flows.workers.worker_encoder import worker_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.base import Store
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import CorpusUnit, UnitRecord
from pipeline.store.records.write_once import load_or_make, put_by_content
from pipeline.store.rows.arrays import one_chunk
from pipeline.store.rows.schema import KEY, original_name, stored_name

_ROWS_AT_ONCE = 2_048  # rows whose variants are judged together, so that the encoder's buffers are full
# columns of every corpus unit, besides the columns of corpus.keep; the last one holds the text before
# normalization
_INGESTED_COLUMNS = ("id", "text", "text_key", "file", "row", stored_name("text"))
_VARIANT_TYPES = (pa.string(), pa.string(), pa.string(), pa.float32())  # types of `VariantColumns`


class VariantColumns(NamedTuple):
    """Names of the columns of one variant, in the order in which they are stored."""

    kept: str
    """column of the variant; null if it was rejected"""
    rejected: str
    """column of the variant; null if it was kept"""
    reason: str
    """column of the reason of the rejection"""
    similarity: str
    """column of the cosine with the original text"""


def columns_of(label: str) -> VariantColumns:
    """Return the names of the columns of a variant."""
    return VariantColumns(f"variant_{label}", f"rejected_{label}", f"reason_{label}", f"similarity_{label}")


@dataclass(frozen=True)
class AssembleUnit:
    """Write the variants of one corpus unit."""

    store: Store
    augmenters: tuple[NamedAugmenter, ...]
    model_folders: Mapping[str, str]
    """folders of the models' outputs, by the name of the variants"""
    folder: str
    """folder for the units of variants, named by a digest of everything that decides their content"""
    seed: int
    id_name: str
    """name of the column of ids"""
    dead: FileRef | None
    """file that lists the deleted rows of the corpus"""
    encoder: EncoderSettings | None
    """encoder that computes similarities; None if no similarity is bounded"""
    encode: EncodeSettings

    def start(self) -> Callable[[CorpusUnit], UnitRecord]:
        """Load thesauri, dead rows and encoder, and return the function that processes a unit."""
        edits = {
            each.name: each.augmenter.start()
            for each in self.augmenters
            if isinstance(each.augmenter, WordAugmenter)
        }
        dead = DeadRows(self.store, self.dead)
        vectors = None if self.encoder is None else worker_encoder(self.encoder, self.encode).encode

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

            return load_or_make(self.store, f"{name}.json", UnitRecord, make)

        return work

    def _write(
        self,
        unit: CorpusUnit,
        dead_rows: np.ndarray,
        file: Path,
        edits: Mapping[str, Edit],
        vectors: Vectors | None,
    ) -> Counter[str]:
        """Write the variants of the live rows to a file, and count the rows and the variants by outcome."""
        source = pq.read_table(unit.file.open(self.store))
        schema, counts = self._schema(source.schema), Counter(rows=unit.rows - len(dead_rows))
        model_outputs = {
            name: read_outputs(self.store, folder, unit) for name, folder in self.model_folders.items()
        }
        live = np.ones(unit.rows, bool)
        live[dead_rows] = False
        with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
            for start in range(0, unit.rows, _ROWS_AT_ONCE):
                rows = pa.array(start + np.flatnonzero(live[start : start + _ROWS_AT_ONCE]))
                if len(rows):
                    batch = source.take(rows).combine_chunks()
                    outputs = {name: table.take(rows) for name, table in model_outputs.items()}
                    judged = judge(one_chunk(batch["text"]), self._candidates(batch, outputs, edits), vectors)
                    for label, variants in judged.items():
                        for outcome, count in variants.counts().items():
                            counts[f"{label}:{outcome}"] += count
                    writer.write_table(self._table(batch, judged, schema))
                progress(min(start + _ROWS_AT_ONCE, unit.rows))
        progress(unit.rows, last=True)
        return counts

    def _candidates(
        self, batch: pa.Table, model_outputs: Mapping[str, pa.Table], edits: Mapping[str, Edit]
    ) -> dict[str, Candidates]:
        """Return the variants of a batch of rows by label, from the models' outputs or by editing words."""
        candidates: dict[str, Candidates] = {}
        for each in self.augmenters:
            for number, label in enumerate(each.labels):
                if each.name in model_outputs:
                    outputs = model_outputs[each.name]
                    texts, reasons = (one_chunk(outputs[name]) for name in model_columns(number))
                else:
                    edited = self._edit_texts(batch, each.name, number, edits[each.name])
                    texts = pa.array(edited, pa.large_string())
                    reasons = pa.nulls(batch.num_rows, pa.string())
                candidates[label] = Candidates(texts, reasons, each.keep)
        return candidates

    def _edit_texts(self, batch: pa.Table, name: str, number: int, edit: Edit) -> Iterator[str]:
        generator = partial(keyed_rng, self.seed, name, number)
        return (
            " ".join(edit(text.split(), generator(row_id)))
            for row_id, text in zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)
        )

    def _schema(self, corpus: pa.Schema) -> pa.Schema:
        kept = [
            corpus.field(name).with_name(original_name(name))
            for name in corpus.names
            if name not in _INGESTED_COLUMNS
        ]
        text = [
            pa.field(self.id_name, corpus.field("id").type, nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("text_key", KEY, nullable=False),
        ]
        labels = [label for each in self.augmenters for label in each.labels]
        variants = [pair for label in labels for pair in zip(columns_of(label), _VARIANT_TYPES, strict=True)]
        return pa.schema([*text, *kept, *variants])

    def _table(self, batch: pa.Table, judged: Mapping[str, JudgedVariants], schema: pa.Schema) -> pa.Table:
        kept = [batch[name] for name in batch.column_names if name not in _INGESTED_COLUMNS]
        variants = [(each.kept, each.rejected, each.reasons, each.similarity) for each in judged.values()]
        arrays = [batch["id"], batch["text"], batch["text_key"], *kept, *chain.from_iterable(variants)]
        return pa.table(
            [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
        )
