"""Encode the sentences of all tasks, once for each space, and store the vectors for later evaluations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.evaluate.source import BLANK
from pipeline.evaluate.tfidf import TfIdf
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.encode import check_any_vector, encode_units
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.encode.unit import EncodeUnit, load_record
from pipeline.flows.evaluate.candidates import ResolvedCandidate
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.sealed_json import Stored
from pipeline.store.records.units import CorpusUnit, UnitRecord, sum_counts
from pipeline.store.records.write_once import store_table_by_content
from pipeline.store.rows.schema import check_space, corpus_schema, vectors_at, writer_options
from pipeline.text.normalize import normalize, text_keys

_UNITS_PER_WORKER = 4  # so that no worker runs alone for long at the end
_MIN_UNIT_SENTENCES = 256  # fewer sentences do not fill the encoder's buffers
_CHARACTERS_PER_TEXT = 8  # constant cost of a text, such as for its special tokens, in characters


@dataclass(frozen=True)
class Sentences:
    """Distinct normalized sentences, with their content keys."""

    texts: pa.Array
    keys: pa.Array

    @classmethod
    def of(cls, sentences: Iterable[str]) -> "Sentences":
        """Return the distinct sentences in order of first appearance."""
        texts = pc.unique(clean_sentences(sentences))
        return cls(texts, text_keys(texts))

    def __len__(self) -> int:
        return len(self.texts)

    def without(self, known: pa.Array) -> "Sentences":
        """Return the sentences whose key is not in `known`."""
        new = pc.invert(pc.is_in(self.keys, value_set=known))
        return Sentences(self.texts.filter(new), self.keys.filter(new))


def clean_sentences(sentences: Iterable[str] | pa.Array) -> pa.Array:
    """Normalize sentences as the texts of a corpus, but replace blank ones by a single space."""
    texts = normalize(sentences if isinstance(sentences, pa.Array) else list(sentences))
    return pc.if_else(pc.equal(pc.utf8_length(texts), 0), pa.scalar(BLANK, pa.large_string()), texts)


@dataclass(frozen=True)
class SpaceVectors:
    """Vectors of sentences in one space, as references to the stored units.

    It is sent to workers, which open the files when they need them.
    """

    store: Store
    space_id: str
    dim: int
    units: tuple[UnitRecord, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the keys that were read."""
        return SpaceVectors, (self.store, self.space_id, self.dim, self.units)

    def __call__(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Look up the vectors of sentences.

        Returns:
            (n, dim) float32 vectors, and (n,) bool: True if the vector is zero because the encoder gave no
            usable one.

        Raises:
            DataError: a sentence was not encoded.
        """
        positions = pc.index_in(text_keys(clean_sentences(sentences)), value_set=self.keys)
        if positions.null_count:
            raise DataError(
                self.store.uri,
                "a vector for every sentence",
                f"none for {positions.null_count:,} of {len(positions):,}",
                "the sentence vectors were changed while this ran: run again",
            )
        distinct, inverse = np.unique(positions.to_numpy(), return_inverse=True)
        return self._vectors_at(distinct)[inverse], (distinct >= self._starts[-1])[inverse]

    def numerics(self) -> dict[str, int]:
        """Count the vectors by the numerics_id that computed them."""
        return dict(sorted(sum_counts({unit.numerics_id or "": unit.rows} for unit in self.units).items()))

    @cached_property
    def _starts(self) -> np.ndarray:
        """Position of each unit's first vector in `keys`, then the number of all vectors."""
        return np.cumsum([0, *(unit.rows for unit in self.units)])

    @cached_property
    def keys(self) -> pa.Array:
        """The keys of the vectors, unit by unit, then the keys of sentences without a usable vector."""
        columns = in_threads(lambda unit: self._open(unit).read(["text_key"])["text_key"], self.units)
        unusable = in_threads(self._unusable_keys, self.units)
        chunks = (chunk for column in columns for chunk in column.chunks)
        return pa.concat_arrays([pa.array([], pa.binary(16)), *chunks, *unusable])

    def _unusable_keys(self, unit: UnitRecord) -> pa.Array:
        """Read the keys of a unit's quarantined sentences, whose ids are hexadecimal keys."""
        ids = list[str]()
        if unit.quarantine is not None:
            ids = pq.read_table(unit.quarantine.open(self.store), columns=["id"])["id"].to_pylist()
        return pa.array([bytes.fromhex(key) for key in ids], pa.binary(16))

    def _vectors_at(self, positions: np.ndarray) -> np.ndarray:
        """Read the vectors at ascending positions in `keys`, (m, dim) float32. Unusable vectors are zero."""
        vectors = np.zeros((len(positions), self.dim), np.float32)
        for unit, start in zip(self.units, self._starts[:-1].tolist(), strict=True):
            in_unit = (positions >= start) & (positions < start + unit.rows)
            if in_unit.any():
                vectors[in_unit] = vectors_at(self._open(unit), positions[in_unit] - start)
        return vectors

    def _open(self, unit: UnitRecord) -> pq.ParquetFile:
        return check_space(pq.ParquetFile(unit.file.open(self.store)), unit.path, self.space_id)


@dataclass(frozen=True)
class SparseVectors:
    """Vectors of TF-IDF, which are computed where they are needed and not stored."""

    tfidf: TfIdf

    def __call__(self, sentences: Sequence[str]) -> tuple[Any, np.ndarray]:
        """Return (n, words) in scipy's CSR format, and (n,) False: zero vectors are counted by the tasks."""
        vectors = self.tfidf(clean_sentences(sentences).to_pylist())
        return vectors, np.zeros(len(sentences), bool)

    def numerics(self) -> dict[str, int]:
        """Return no counts: no vector is stored."""
        return {}


def load_vectors(store: Store, candidate: ResolvedCandidate) -> SpaceVectors:
    """Load the vectors that earlier evaluations stored for the candidate's space, without truncated units."""
    folder = f"units/vectors/{candidate.space_id[:16]}"

    def load(path: str) -> UnitRecord | None:
        record = load_record(store, path, candidate.space_id)
        return record if record is not None and record.is_complete(store) else None

    records = in_threads(load, [entry.path for entry in store.list(folder, ".json")])
    units = tuple(record for record in records if record is not None)
    return SpaceVectors(store, candidate.space_id, candidate.dim, units)


def encode_sentences(
    context: FlowContext, new: Sentences, earlier: SpaceVectors, candidate: ResolvedCandidate
) -> SpaceVectors:
    """Encode the new sentences, longest first, and record the speed.

    Returns:
        All vectors: `earlier` and the new ones.
    """
    job, store = context.job, context.store
    # float32, because so few vectors need not be small
    settings = job.encode.model_copy(update={"vectors": "float32"})
    pool = context.workers.wide_pool(job.cluster, max(1, len(new) // _MIN_UNIT_SENTENCES))
    units = _write_units(new, store, settings.unit_rows, pool.size)
    task = EncodeUnit(
        store,
        encoder_for_workers(candidate.encoder, store, context.workers),
        context.workers.encode_settings(settings, pool),
        earlier.space_id,
        "id",
        patience_s=job.cluster.patience_s,
    )
    with context.stages(f"encode {candidate.name}", len(new), "sentences") as bar:
        encoded, stats = encode_units(context, task, units, pool, bar)
        bar.reach(len(new))
    records = (*earlier.units, *encoded)
    check_any_vector(records, candidate.encoder, f"{len(new):,} sentences")
    speed_path = _speed_path(earlier.space_id)
    largest = Speed.load_intact(store, speed_path)
    if largest is None or largest.sentences <= len(new):
        busy_s = max(stats.forward_s + stats.waiting_s, 1e-9)
        store.write(speed_path, Speed(sentences=len(new), busy_s=busy_s).to_json())
    return SpaceVectors(store, earlier.space_id, earlier.dim, records)


class Speed(Stored):
    """The speed of encoding in one evaluation."""

    sentences: int
    busy_s: float
    """seconds that workers were busy, summed over the workers"""


def sentences_per_s(store: Store, space_id: str) -> float | None:
    """Return the speed of one worker in the largest evaluation of this space; None if unknown."""
    speed = Speed.load_intact(store, _speed_path(space_id))
    return speed.sentences / speed.busy_s if speed else None


def _speed_path(space_id: str) -> str:
    return f"speeds/{space_id[:24]}.json"


def _write_units(new: Sentences, store: Store, max_sentences: int, workers: int) -> list[CorpusUnit]:
    """Store the sentences as units of about equal cost, several for each worker, longest sentences first."""
    order = np.argsort(-pc.utf8_length(new.texts).to_numpy(), kind="stable")
    texts, keys = new.texts.take(pa.array(order)), new.keys.take(pa.array(order))
    cuts = _cuts(pc.utf8_length(texts).to_numpy(), max_sentences, workers)
    return [
        _write_unit(store, texts[start:stop], keys[start:stop], number)
        for number, (start, stop) in enumerate(pairwise(cuts))
    ]


def _cuts(lengths: np.ndarray, max_sentences: int, workers: int) -> list[int]:
    """Cut sentences into units of about equal numbers of characters.

    Args:
        lengths: characters of the sentences, descending.
        max_sentences: largest number of sentences of a unit.
        workers: number of workers.

    Returns:
        Boundaries of the units: 0, then the end of each.
    """
    count = max(1, min(_UNITS_PER_WORKER * workers, len(lengths) // _MIN_UNIT_SENTENCES))
    work = np.cumsum(lengths + _CHARACTERS_PER_TEXT)
    ends = np.searchsorted(work, work[-1] * np.arange(1, count + 1) / count) + 1
    cuts = {0}
    for start, stop in pairwise([0, *np.minimum(ends, len(lengths)).tolist()]):
        parts = -(-(stop - start) // max_sentences)
        cuts.update(start + (stop - start) * part // parts for part in range(1, parts + 1))
    return sorted(cuts)


def _write_unit(store: Store, texts: pa.Array, keys: pa.Array, number: int) -> CorpusUnit:
    """Store the sentences as a corpus unit, with hexadecimal keys as ids."""
    schema = corpus_schema(pa.string())
    columns = [
        pa.array([key.hex() for key in keys.to_pylist()]),
        texts,
        keys,
        pa.repeat(pa.scalar("sentences"), len(texts)),
        pa.array(np.arange(len(texts)), pa.int64()),
    ]
    stored = store_table_by_content(
        store,
        pa.Table.from_arrays(columns, schema=schema),
        "units/sentences/unit",
        **writer_options(schema),
    )
    return CorpusUnit(name=stored.path, **dict(stored), ordinal=number)
