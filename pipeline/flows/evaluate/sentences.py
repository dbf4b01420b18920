"""The sentences of all tasks, each encoded once per space and kept as units for later evaluations."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.encode.encode import check_any, encode_units
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.encode.unit import EncodeUnit, load_record
from pipeline.flows.evaluate.candidates import Contender
from pipeline.flows.rows import vectors_at
from pipeline.flows.run import Run
from pipeline.store.base import Store
from pipeline.store.once import table_by_content
from pipeline.store.schema import checked_space, corpus_schema, writer_options
from pipeline.store.stored import Stored
from pipeline.store.units import CorpusUnit, UnitRecord, total
from pipeline.text.corpus.normalize import normalize, text_keys

BLANK = " "  # stands for a sentence without text: leaving out its pair would change the task
_READERS = 16  # small files read at once, since each read over a network waits for an answer
_PER_WORKER = 4  # units for each worker, so that none runs alone for long at the end
_FEWEST = 256  # sentences of a unit; fewer do not fill a buffer
_OVERHEAD = 8  # characters that a text costs beside its own, such as for its special tokens


@dataclass(frozen=True)
class Sentences:
    """Distinct sentences as the encoder gets them, with their content keys."""

    texts: pa.Array
    keys: pa.Array

    @classmethod
    def of(cls, sentences: Iterable[str]) -> "Sentences":
        """Return the distinct sentences in order of first appearance."""
        texts = pc.unique(cleaned(sentences))
        return cls(texts, text_keys(texts))

    def __len__(self) -> int:
        return len(self.texts)

    def without(self, known: pa.Array) -> "Sentences":
        """Return the sentences whose key is not in `known`."""
        new = pc.invert(pc.is_in(self.keys, value_set=known))
        return Sentences(self.texts.filter(new), self.keys.filter(new))


def cleaned(sentences: Iterable[str] | pa.Array) -> pa.Array:
    """Normalize sentences as in a corpus, but replace blank ones by a single space."""
    texts = normalize(sentences if isinstance(sentences, pa.Array) else list(sentences))
    return pc.if_else(pc.equal(pc.utf8_length(texts), 0), pa.scalar(BLANK, pa.large_string()), texts)


@dataclass(frozen=True)
class SpaceVectors:
    """Vectors of sentences in one space, as the units that hold them.

    A value that travels; files are opened lazily.
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
            (n, dim) float32 vectors, and an (n,) mask of those that are zero since the encoder gave no usable
            one.

        Raises:
            DataError: a sentence was not encoded.
        """
        positions = pc.index_in(text_keys(cleaned(sentences)), value_set=self.keys)
        if positions.null_count:
            raise DataError(
                self.store.uri,
                "a vector for every sentence",
                f"none for {positions.null_count:,} of {len(positions):,}",
                "the sentence vectors were changed while this ran: run again",
            )
        wanted, inverse = np.unique(positions.to_numpy(), return_inverse=True)
        return self._rows(wanted)[inverse], (wanted >= self._starts[-1])[inverse]

    def numerics(self) -> dict[str, int]:
        """Count the vectors by the numerics that computed them."""
        return dict(sorted(total({unit.numerics_id or "": unit.rows} for unit in self.units).items()))

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0, *(unit.rows for unit in self.units)])

    @cached_property
    def keys(self) -> pa.Array:
        """The keys of the vectors, unit by unit, then those of encoded sentences without a usable vector."""
        with ThreadPoolExecutor(_READERS) as pool:
            held = list(pool.map(lambda unit: self._open(unit).read(["text_key"])["text_key"], self.units))
            lost = list(pool.map(self._lost_keys, self.units))
        chunks = (chunk for column in held for chunk in column.chunks)
        return pa.concat_arrays([pa.array([], pa.binary(16)), *chunks, *lost])

    def _lost_keys(self, unit: UnitRecord) -> pa.Array:
        ids = list[str]()
        if unit.quarantine is not None:
            ids = pq.read_table(unit.quarantine.open(self.store), columns=["id"])["id"].to_pylist()
        return pa.array([bytes.fromhex(key) for key in ids], pa.binary(16))

    def _rows(self, wanted: np.ndarray) -> np.ndarray:
        """Return (m, dim) float32 vectors at ascending positions in `keys`; zero after the last vector."""
        vectors = np.zeros((len(wanted), self.dim), np.float32)
        for unit, start in zip(self.units, self._starts[:-1].tolist(), strict=True):
            here = (wanted >= start) & (wanted < start + unit.rows)
            if here.any():
                vectors[here] = vectors_at(self._open(unit), wanted[here] - start)
        return vectors

    def _open(self, unit: UnitRecord) -> Any:
        return checked_space(pq.ParquetFile(unit.file.open(self.store)), unit.path, self.space_id)


def kept_vectors(store: Store, contender: Contender) -> SpaceVectors:
    """Load the vectors that earlier evaluations stored of the contender's space.

    Incomplete units are ignored.
    """
    top = f"units/vectors/{contender.space_id[:16]}"

    def load(path: str) -> UnitRecord | None:
        record = load_record(store, path, contender.space_id)
        return record if record is not None and record.is_complete(store) else None

    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(load, (entry.path for entry in store.list(top, ".json")))
        units = tuple(record for record in found if record is not None)
    return SpaceVectors(store, contender.space_id, contender.dim, units)


def encode_sentences(run: Run, new: Sentences, held: SpaceVectors, contender: Contender) -> SpaceVectors:
    """Encode the `new` sentences, longest first, and record the speed.

    Returns the held and the new vectors.
    """
    job, store = run.job, run.store
    # A few sentences need no half precision.
    settings = job.encode.model_copy(update={"vectors": "float32"})
    pool = run.workers.wide_pool(job.cluster, max(1, len(new) // _FEWEST))
    units = _written(new, store, settings.unit_rows, pool.size)
    task = EncodeUnit(
        store,
        encoder_for_workers(contender.encoder, store, run.workers),
        run.workers.encode_settings(settings, pool),
        held.space_id,
        "id",
        patience_s=job.cluster.patience_s,
    )
    with run.stages(f"encode {contender.name}", len(new), "sentences") as bar:
        encoded, stats = encode_units(run, task, units, pool, bar)
        bar.reach(len(new))
    records = (*held.units, *encoded)
    check_any(records, contender.encoder, f"{len(new):,} sentences")
    busy_s = sum(stats.seconds.get(name, 0.0) for name in ("forward_s", "waiting_s"))
    path, speed = _speed_path(held.space_id), Speed(sentences=len(new), busy_s=max(busy_s, 1e-9))
    kept = Speed.load_intact(store, path)
    if kept is None or kept.sentences <= speed.sentences:
        store.write(path, speed.to_json())
    return SpaceVectors(store, held.space_id, held.dim, records)


class Speed(Stored):
    """The speed of encoding: sentences, and the seconds that all workers together were busy."""

    sentences: int
    busy_s: float


def sentences_per_s(store: Store, space_id: str) -> float | None:
    """Return the speed of one worker in the evaluation that encoded most in this space; None if unknown."""
    kept = Speed.load_intact(store, _speed_path(space_id))
    return kept.sentences / kept.busy_s if kept else None


def _speed_path(space_id: str) -> str:
    return f"speeds/{space_id[:24]}.json"


def _written(new: Sentences, store: Store, most: int, workers: int) -> list[CorpusUnit]:
    """Store the sentences as units of about equal work, several for each worker, longest sentences first."""
    order = np.argsort(-pc.utf8_length(new.texts).to_numpy(), kind="stable")
    texts, keys = new.texts.take(pa.array(order)), new.keys.take(pa.array(order))
    cuts = _cuts(pc.utf8_length(texts).to_numpy(), most, workers)
    return [
        _unit(store, texts[start:stop], keys[start:stop], number)
        for number, (start, stop) in enumerate(pairwise(cuts))
    ]


def _cuts(lengths: np.ndarray, most: int, workers: int) -> list[int]:
    """Return the ends of units of about equal characters and at most `most` sentences. `lengths` descend."""
    count = max(1, min(_PER_WORKER * workers, len(lengths) // _FEWEST))
    work = np.cumsum(lengths + _OVERHEAD)
    ends = np.searchsorted(work, work[-1] * np.arange(1, count + 1) / count) + 1
    cuts = {0}
    for start, stop in pairwise([0, *np.minimum(ends, len(lengths)).tolist()]):
        parts = -(-(stop - start) // most)
        cuts.update(start + (stop - start) * part // parts for part in range(1, parts + 1))
    return sorted(cuts)


def _unit(store: Store, texts: pa.Array, keys: pa.Array, number: int) -> CorpusUnit:
    """Store the sentences as a unit. Ids are hexadecimal keys, which identify quarantined sentences."""
    schema = corpus_schema(pa.string())
    columns = [
        pa.array([key.hex() for key in keys.to_pylist()]),
        texts,
        keys,
        pa.repeat(pa.scalar("sentences"), len(texts)),
        pa.array(np.arange(len(texts)), pa.int64()),
    ]
    stored = table_by_content(
        store,
        pa.Table.from_arrays(columns, schema=schema),
        "units/sentences/unit",
        **writer_options(schema),
    )
    return CorpusUnit(name=stored.path, **dict(stored), ordinal=number)
