"""Corpus units become embedding units: raw vectors, moments and a record each, on a pool of actors that hold
the encoder.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError, ModelError
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.encode.rejected import rejected_warnings
from pipeline.flows.encode.unit import EncodeUnit, Spent, load_record, record_path
from pipeline.flows.rows import placed_in
from pipeline.flows.run import Run
from pipeline.flows.workers.worker import gpu_assigned
from pipeline.log import say
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.units import Corpus, Manifest, UnitRecord, total
from pipeline.text.corpus.normalize import normalize
from pipeline.text.tokens.coverage import token_counts, token_warnings

_READERS = 16  # small files read at once: over a network each waits for an answer


class EncodeBlocks:
    """The encoder as a callable class for `Dataset.map_batches(..., batch_format="pyarrow")`: any Ray Dataset
    gains a vector column, block by block.

    A row without text (null, or nothing but white space) gets a null vector, and so does one whose vector
    would be zero or not finite. Larger batches fill buffers better: a few thousand rows.
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
        if self._text not in block.column_names:
            remedy = "name it: fn_constructor_kwargs={'text': ...}"
            raise DataError(
                "EncodeBlocks",
                f"a text column {self._text!r}",
                f"the columns {', '.join(block.column_names)}",
                remedy,
            )
        if self._vector in block.column_names:
            remedy = "drop it, or name another: fn_constructor_kwargs={'vector': ...}"
            raise DataError(
                "EncodeBlocks",
                f"no column {self._vector!r} yet, the vectors become it",
                f"the columns {', '.join(block.column_names)}",
                remedy,
            )
        texts = normalize(block[self._text].combine_chunks())
        filled = pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False).to_numpy(zero_copy_only=False)
        vectors = np.zeros((len(texts), self._encoder.dim), np.float32)
        if filled.any():
            vectors[filled] = self._encoder.encode(texts.filter(pa.array(filled)).to_pylist())
        usable = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
        flat = pa.array(vectors.reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(flat, self._encoder.dim, mask=pa.array(~usable))
        return block.append_column(self._vector, column)


def encode(run: Run, corpus: Corpus, before: ReleaseManifest | None = None) -> tuple[Manifest, Spent]:
    """Encode the units of the corpus, longest first so that none is waited for at the end.

    Units that have a record are not encoded again.

    Args:
        before: the release whose vectors are copied for texts that it holds, if they are of the same space
            and
            stored alike.

    Returns:
        The units of vectors in the order of the corpus, and the time spent.
    """
    job, store = run.job, run.store
    run.workers.check(job.cluster)  # even if all units are there: the gates encode, after the index
    folder = open_folder(job.encoder)
    made = finished(store, corpus, folder.space_id, job)
    todo = sorted(
        (unit for unit in corpus.units if unit.sha256 not in made),
        key=lambda unit: (-unit.bytes, unit.sha256),
    )
    spent = Spent()
    with run.stages("encode", sum(unit.rows for unit in corpus.units)) as bar:
        bar.skip(sum(unit.rows for unit in corpus.units if unit.sha256 in made))
        if todo:
            sources = (
                placed_in(before) if before is not None and copies_from(before, job, folder.space_id) else ()
            )
            pool = run.workers.wide_pool(job.cluster, len(todo))
            task = EncodeUnit(
                store,
                encoder_for_workers(job.encoder, store, run.workers),
                run.workers.encode_settings(job.encode, pool),
                folder.space_id,
                job.corpus.id,
                uuid.uuid4().hex[:12],
                sources,
                job.cluster.patience_s,
            )
            for number, (record, seconds) in run.workers.map_units(task, todo, pool, bar):
                made[todo[number].sha256] = record
                spent = spent.merge(seconds)
        bar.reach(sum(unit.rows for unit in todo))
        bar.stage.note = _waits(spent)
    for sentence in spent.said:
        say(sentence)
    records = tuple(made[unit.sha256] for unit in corpus.units)
    known = {unit.path for unit in before.units} if before is not None else set()
    every = [each.counts for each in records]
    counts = token_counts(every, [each.counts for each in records if each.path not in known])
    sums = total(every)
    for sentence in (*token_warnings(counts), *rejected_warnings(sums, sums.get("rows", 0))):
        say(f"warning: {sentence}")
    if not any(record.rows for record in records):
        raise ModelError(
            job.encoder.path,
            "finite, non-zero vectors",
            "none in the whole corpus",
            "check the encoder's weights and dtype",
        )
    return Manifest(
        stage="vectors", units=records, parents=(corpus.digest,), settings_digest=folder.space_id
    ), spent


def waiting_rows(corpus: Corpus, job: Job, store: Store) -> int:
    """Rows of units that have no record yet."""
    made = finished(store, corpus, open_folder(job.encoder).space_id, job)
    return sum(unit.rows for unit in corpus.units if unit.sha256 not in made)


def copies_from(before: ReleaseManifest, job: Job, space_id: str) -> bool:
    """Whether a release's vectors can stand beside those that the job makes: of the same space and stored in
    the same type.
    """
    return (
        before.space_id == space_id and before.settings.get("encode", {}).get("vectors") == job.encode.vectors
    )


def finished(store: Store, corpus: Corpus, space_id: str, job: Job) -> dict[str, UnitRecord]:
    """Records of units that need no encoding, by the sha256 of the corpus unit: those whose files are there
    in full.
    """
    directory = record_path(space_id, corpus.units[0], job.encode, job.corpus.id).rpartition("/")[0]
    there = {
        entry.path: entry.size
        for top in (directory, f"moments/{space_id[:16]}", f"quarantine/{space_id[:16]}")
        for entry in store.list(top)
    }
    named = [
        (unit, path)
        for unit in corpus.units
        if (path := record_path(space_id, unit, job.encode, job.corpus.id)) in there
    ]
    with ThreadPoolExecutor(_READERS) as pool:
        records = list(pool.map(lambda each: load_record(store, each[1], space_id), named))
    found = {
        unit.sha256: record for (unit, _), record in zip(named, records, strict=True) if record is not None
    }
    return {
        name: record
        for name, record in found.items()
        if all(there.get(file.path) == file.bytes for file in record.references())
    }


def _waits(spent: Spent) -> str:
    seconds, tokens = spent.seconds, spent.seconds.get("tokens", 0)
    forward, tokenizer, stored = (seconds.get(name, 0.0) for name in ("forward_s", "waiting_s", "store"))
    whole = forward + tokenizer + stored
    return (
        (
            f"{tokens:,.0f} tokens; workers waited {tokenizer / whole:.1%} for the tokenizer, "
            f"{stored / whole:.1%} for the store"
        )
        if whole
        else ""
    )
