"""Encode the units of a corpus on a pool of workers that hold the encoder."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError, ModelError
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.encode.rejected import rejected_warnings
from pipeline.flows.encode.unit import EncodeUnit, WorkerStats, load_record, record_path
from pipeline.flows.rows import placed_units
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import Pool
from pipeline.flows.workers.worker import gpu_assigned
from pipeline.log import Running, say
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.units import Corpus, CorpusUnit, Manifest, UnitRecord, total
from pipeline.text.corpus.normalize import normalize
from pipeline.text.tokens.coverage import token_counts, token_warnings

_READERS = 16  # small files read at once: over a network each takes a round trip


class EncodeBlocks:
    """Encode a text column of a Ray Dataset, for `Dataset.map_batches(..., batch_format="pyarrow")`.

    Rows without text (null, or nothing but white space), and rows whose vector would be zero or not finite,
    get a null vector. Batches of a few thousand rows fill the encoder's buffers well.

    Args:
        encoder: settings, or the path of the encoder.
        text: column to encode.
        vector: column for the vectors; it must not exist.
        encode: settings (default: those of a night).
    """

    def __init__(
        self,
        encoder: EncoderSettings | str,
        text: str = "text",
        vector: str = "vector",
        encode: EncodeSettings | None = None,
    ) -> None:
        from pipeline.device import resolve
        from pipeline.models.inference.encoder import load_encoder

        settings = EncoderSettings(path=encoder) if isinstance(encoder, str) else encoder
        arithmetic = encode or EncodeSettings()
        self._encoder = load_encoder(settings, arithmetic, resolve(arithmetic.device, float(gpu_assigned())))
        self._text, self._vector = text, vector

    def __repr__(self) -> str:
        return f"EncodeBlocks({self._encoder!r}, text={self._text!r}, vector={self._vector!r})"

    def __call__(self, block: pa.Table) -> pa.Table:
        found = f"the columns {', '.join(block.column_names)}"
        if self._text not in block.column_names:
            raise DataError(
                "EncodeBlocks",
                f"a text column {self._text!r}",
                found,
                "name it: fn_constructor_kwargs={'text': ...}",
            )
        if self._vector in block.column_names:
            raise DataError(
                "EncodeBlocks",
                f"no column {self._vector!r} yet, the vectors become it",
                found,
                "drop it, or name another: fn_constructor_kwargs={'vector': ...}",
            )
        texts = normalize(block[self._text].combine_chunks())
        filled = pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False).to_numpy(zero_copy_only=False)
        vectors = np.zeros((len(texts), self._encoder.dim), np.float32)
        if filled.any():
            vectors[filled] = self._encoder.encode(texts.filter(pa.array(filled)).to_pylist())
        usable = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.reshape(-1)), self._encoder.dim, mask=pa.array(~usable)
        )
        return block.append_column(self._vector, column)


def encode(run: Run, corpus: Corpus, before: ReleaseManifest | None = None) -> tuple[Manifest, WorkerStats]:
    """Encode the units of the corpus that have no record yet, largest first so that none is late at the end.

    Args:
        before: the release whose vectors are copied for equal texts, if they are of the same space and type.

    Returns:
        The units of vectors in the order of the corpus, and the workers' timings and counters.
    """
    job, store = run.job, run.store
    run.workers.check(job.cluster)  # even if there is nothing to encode: gates encode later
    space_id = open_folder(job.encoder).space_id
    made = finished(store, corpus, space_id, job)
    todo = sorted(
        (unit for unit in corpus.units if unit.sha256 not in made),
        key=lambda unit: (-unit.bytes, unit.sha256),
    )
    stats = WorkerStats()
    with run.stages("encode", sum(unit.rows for unit in corpus.units)) as bar:
        bar.skip(sum(unit.rows for unit in corpus.units if unit.sha256 in made))
        if todo:
            pool = run.workers.wide_pool(job.cluster, len(todo))
            task = EncodeUnit(
                store,
                encoder_for_workers(job.encoder, store, run.workers),
                run.workers.encode_settings(job.encode, pool),
                space_id,
                job.corpus.id,
                placed_units(before) if before and _can_copy(before, job, space_id) else (),
                job.cluster.patience_s,
            )
            records, stats = encode_units(run, task, todo, pool, bar)
            made |= {unit.sha256: record for unit, record in zip(todo, records, strict=True)}
        bar.reach(sum(unit.rows for unit in todo))
        bar.stage.note = _waits(stats)
    units = tuple(made[unit.sha256] for unit in corpus.units)
    _warn(units, before)
    check_any(units, job.encoder, "the whole corpus")
    return Manifest(stage="vectors", units=units, parents=(corpus.digest,), settings_digest=space_id), stats


def encode_units(
    run: Run, task: EncodeUnit, units: Sequence[CorpusUnit], pool: Pool, bar: Running
) -> tuple[tuple[UnitRecord, ...], WorkerStats]:
    """Run the task over the units; log warnings. Returns their records in order, and the workers' stats."""
    records, stats = {}, WorkerStats()
    for number, (record, of_unit) in run.workers.map_units(task, units, pool, bar):
        records[number] = record
        stats = stats.merge(of_unit)
    for sentence in stats.warnings:
        say(sentence)
    return tuple(records[number] for number in range(len(units))), stats


def check_any(records: Sequence[UnitRecord], encoder: EncoderSettings, texts: str) -> None:
    """Raise ModelError if no unit has a vector. texts: description of the texts."""
    if not any(record.rows for record in records):
        raise ModelError(
            encoder.path,
            "finite, non-zero vectors",
            f"none for {texts}",
            "check the encoder's weights and dtype",
        )


def _can_copy(before: ReleaseManifest, job: Job, space_id: str) -> bool:
    """Return whether vectors of the release are of the same space and stored type as those of the job."""
    return (
        before.space_id == space_id and before.settings.get("encode", {}).get("vectors") == job.encode.vectors
    )


def _warn(units: Sequence[UnitRecord], before: ReleaseManifest | None) -> None:
    """Log warnings about unknown tokens and rejected texts."""
    known = {unit.path for unit in before.units} if before is not None else set()
    counts = [unit.counts for unit in units]
    tokens = token_counts(counts, [unit.counts for unit in units if unit.path not in known])
    sums = total(counts)
    for sentence in (*token_warnings(tokens), *rejected_warnings(sums, sums.get("rows", 0))):
        say(f"warning: {sentence}")


def waiting_rows(corpus: Corpus, job: Job, store: Store) -> int:
    """Return the rows of units that are not encoded yet."""
    made = finished(store, corpus, open_folder(job.encoder).space_id, job)
    return sum(unit.rows for unit in corpus.units if unit.sha256 not in made)


def finished(store: Store, corpus: Corpus, space_id: str, job: Job) -> dict[str, UnitRecord]:
    """Load the records of complete units, by the sha256 of the corpus unit. Sizes come from listings."""
    paths = [record_path(space_id, unit, job.encode, job.corpus.id) for unit in corpus.units]
    folders = (paths[0].rpartition("/")[0], f"moments/{space_id[:16]}", f"quarantine/{space_id[:16]}")
    sizes = {entry.path: entry.size for folder in folders for entry in store.list(folder)}

    def load(path: str) -> UnitRecord | None:
        record = load_record(store, path, space_id) if path in sizes else None
        files = record.references() if record else ()
        return record if all(sizes.get(file.path) == file.bytes for file in files) else None

    with ThreadPoolExecutor(_READERS) as pool:
        records = list(pool.map(load, paths))
    return {unit.sha256: record for unit, record in zip(corpus.units, records, strict=True) if record}


def _waits(stats: WorkerStats) -> str:
    """Return a note on the time that workers waited for tokenizer and store; empty if nothing was encoded."""
    forward_s, tokenizer_s, store_s, tokens = (
        stats.seconds.get(name, 0.0) for name in ("forward_s", "waiting_s", "store", "tokens")
    )
    if not (sum_s := forward_s + tokenizer_s + store_s):
        return ""
    return (
        f"{tokens:,.0f} tokens; workers waited {tokenizer_s / sum_s:.1%} for the tokenizer, "
        f"{store_s / sum_s:.1%} for the store"
    )
