"""Encode the units of a corpus on a pool of workers that hold the encoder."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError, ModelError
from pipeline.flows.context import FlowContext, map_kept_units
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.encode.rejected import rejected_warnings
from pipeline.flows.encode.samples import sample_folder, with_samples
from pipeline.flows.encode.unit import EncodeUnit, load_record, record_path
from pipeline.flows.encode.worker_stats import WorkerStats
from pipeline.flows.rows import units_by_ordinal
from pipeline.flows.workers.tasks import Pool
from pipeline.flows.workers.worker_encoder import gpu_assigned
from pipeline.log import RunningStage, announce
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.store.files.base import Store, in_threads
from pipeline.store.files.file_sizes import ListedFiles
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.units import Corpus, CorpusUnit, StageRecord, UnitRecord, sum_counts
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.waiting import WaitingRelease
from pipeline.store.rows.arrays import is_text, one_chunk, plain_values
from pipeline.text.formats.kept_values import check_values
from pipeline.text.normalize import normalize
from pipeline.text.tokens.coverage import ScriptCoverage, token_counts, token_warnings


class EncodeBlocks:
    """Encode a text column of a Ray Dataset, for `Dataset.map_batches`.

    Rows without text (null, or only white space) get a null vector. So do rows whose text is not valid UTF-8
    or cannot be encoded, and rows whose vector would be zero or not finite. A line on standard error for each
    batch counts the rows that have a text and no vector. Batches of a few thousand rows fill the encoder's
    buffers well; batch_format="pyarrow" saves a conversion.

    Args:
        encoder: settings of the encoder, or its path.
        text: column to encode.
        vector: column for the vectors; it must not exist.
        encode: settings of the encoding (default: those of a night).
        error: column for the reasons of null vectors, null for other rows; it must not exist. Default: none.
    """

    def __init__(
        self,
        encoder: EncoderSettings | str,
        text: str = "text",
        vector: str = "vector",
        encode: EncodeSettings | None = None,
        error: str | None = None,
    ) -> None:
        from pipeline.device import resolve
        from pipeline.models.inference.encoder import load_encoder

        settings = EncoderSettings(path=encoder) if isinstance(encoder, str) else encoder
        encode = encode or EncodeSettings()
        self._encoder = load_encoder(settings, encode, resolve(encode.device, float(gpu_assigned())))
        self._text, self._vector, self._error = text, vector, error

    def __repr__(self) -> str:
        return f"EncodeBlocks({self._encoder!r}, text={self._text!r}, vector={self._vector!r})"

    def __call__(self, batch: Any) -> pa.Table:
        """Return the batch, which may have any of Ray's formats, as a table with the vectors."""
        block = batch if isinstance(batch, pa.Table) else _table_of(batch)
        self._check_columns(block)
        column = plain_values(one_chunk(block[self._text]))
        try:
            checked = check_values(column if is_text(column.type) else column.cast(pa.large_string()))
        except pa.ArrowException:
            raise DataError(
                "EncodeBlocks",
                f"a column {self._text!r} of texts",
                f"a column of type {column.type}",
                "name another: fn_constructor_kwargs={'text': ...}",
            ) from None
        texts = normalize(checked.values)
        filled = pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False).to_numpy(zero_copy_only=False)
        vectors = np.zeros((len(texts), self._encoder.dim), np.float32)
        failures = dict.fromkeys(checked.not_utf8.tolist(), "the text is not valid UTF-8")
        if filled.any():
            encoded, raised = self._encoder.encode_each(texts.filter(pa.array(filled)).to_pylist())
            rows = np.flatnonzero(filled)
            vectors[rows] = encoded
            failures |= {int(rows[number]): reason for number, reason in raised.items()}
        usable = np.asarray(np.isfinite(vectors).all(axis=1) & vectors.any(axis=1))
        for row in np.flatnonzero(filled & ~usable).tolist():
            failures.setdefault(row, "the vector is zero or not finite")
        self._report(failures, len(texts))
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.reshape(-1)), self._encoder.dim, mask=pa.array(~usable)
        )
        block = block.append_column(self._vector, column)
        if self._error is None:
            return block
        reasons = [None if ok else failures.get(row, "no text") for row, ok in enumerate(usable.tolist())]
        return block.append_column(self._error, pa.array(reasons, pa.string()))

    def _check_columns(self, block: pa.Table) -> None:
        found = f"the columns {', '.join(block.column_names)}"
        if self._text not in block.column_names:
            raise DataError(
                "EncodeBlocks",
                f"a text column {self._text!r}",
                found,
                "name it: fn_constructor_kwargs={'text': ...}",
            )
        for name, content in ((self._vector, "the vectors"), (self._error, "the reasons")):
            if name in block.column_names:
                argument = "vector" if content == "the vectors" else "error"
                raise DataError(
                    "EncodeBlocks",
                    f"no column {name!r}, which will contain {content}",
                    found,
                    f"drop it, or name another: fn_constructor_kwargs={{'{argument}': ...}}",
                )

    @staticmethod
    def _report(failures: dict[int, str], rows: int) -> None:
        """Report how many rows have a text but no vector, and name the first."""
        if failures:
            first = min(failures)
            announce(
                f"EncodeBlocks: {len(failures):,} of {rows:,} rows of a batch have a text and no vector; "
                f"the first, row {first}: {failures[first]}"
            )


def _table_of(batch: Any) -> pa.Table:
    """Convert a batch of NumPy arrays, Ray's default format, or of pandas."""
    from ray.data.block import BlockAccessor

    return BlockAccessor.for_block(BlockAccessor.batch_to_block(batch)).to_arrow()


def encode(
    context: FlowContext,
    corpus: Corpus,
    previous: ReleaseManifest | None = None,
    waiting: WaitingRelease | None = None,
) -> tuple[StageRecord, WorkerStats]:
    """Encode the units of the corpus that have no record yet, the largest first to keep all workers busy.

    Args:
        previous: the previous release. Its vectors of equal texts are copied if space and type are the same.
        waiting: the candidate that waits, whose vectors are copied in the same way.

    Returns:
        The units of vectors in the order of the corpus, and the workers' timings and counters.
    """
    job, store = context.job, context.store
    context.workers.check(
        job.cluster
    )  # even if there is nothing to encode here, because the gates encode later
    space_id = open_folder(job.encoder).space_id
    records = load_records(store, corpus, job, previous)
    todo = sorted(
        (unit for unit in corpus.units if unit.sha256 not in records),
        key=lambda unit: (-unit.bytes, unit.sha256),
    )
    stats = WorkerStats()
    with context.stages("encode", sum(unit.rows for unit in corpus.units)) as bar:
        bar.skip(sum(unit.rows for unit in corpus.units if unit.sha256 in records))
        if todo:
            pool = context.workers.wide_pool(job.cluster, len(todo))
            task = EncodeUnit(
                store,
                encoder_for_workers(job.encoder, store, context.workers),
                context.workers.encode_settings(job.encode, pool),
                space_id,
                job.corpus.id,
                _units_to_copy_from(job, space_id, previous, waiting),
                job.cluster.patience_s,
            )
            new_records, stats = encode_units(context, task, todo, pool, bar)
            records |= {unit.sha256: record for unit, record in zip(todo, new_records, strict=True)}
        bar.reach(sum(unit.rows for unit in todo))
        records = with_samples(context, records, previous)
        bar.stage.note = _waiting_note(stats)
    units = tuple(records[unit.sha256] for unit in corpus.units)
    _report_tokens(units, previous)
    check_any_vector(units, job.encoder, "the whole corpus")
    return StageRecord(
        stage="vectors", units=units, parents=(corpus.digest,), settings_digest=space_id
    ), stats


def encode_units(
    context: FlowContext, task: EncodeUnit, units: Sequence[CorpusUnit], pool: Pool, bar: RunningStage
) -> tuple[tuple[UnitRecord, ...], WorkerStats]:
    """Encode the units and log warnings. Returns their records in order, and the workers' stats."""
    records, stats = {}, WorkerStats()
    for number, (record, unit_stats) in map_kept_units(context, task, units, pool, bar):
        records[number] = record
        stats = stats.merge(unit_stats)
    for sentence in stats.warnings:
        announce(sentence)
    return tuple(records[number] for number in range(len(units))), stats


def vector_units(job: Job, corpus: Corpus, vectors: StageRecord) -> tuple[VectorUnit, ...]:
    """Return the units of vectors, each with the addresses of its corpus unit's rows."""
    space_id = open_folder(job.encoder).space_id
    return tuple(
        VectorUnit.of(unit, record, record_path(space_id, unit, job.encode, job.corpus.id))
        for unit, record in zip(corpus.units, vectors.units, strict=True)
    )


def check_any_vector(records: Sequence[UnitRecord], encoder: EncoderSettings, texts: str) -> None:
    """Raise ModelError if no unit has a vector.

    Args:
        texts: description of the texts, for the message.
    """
    if any(record.rows for record in records):
        return
    remedy = "check the encoder's weights and dtype"
    if open_folder(encoder).whole_words:
        remedy = "use an encoder of the texts' language: they have no word that this one knows"
    raise ModelError(encoder.path, "finite, non-zero vectors", f"none for {texts}", remedy)


def _units_to_copy_from(
    job: Job, space_id: str, previous: ReleaseManifest | None, waiting: WaitingRelease | None
) -> tuple[VectorUnit, ...]:
    """Return the units of the previous release, and those of the waiting candidate that no release has."""
    units = units_by_ordinal(previous) if previous and _can_copy(previous, job, space_id) else ()
    if waiting is None or not _can_copy(waiting.manifest, job, space_id):
        return units
    first = waiting.record.first_ordinal
    return (*units, *(unit for unit in units_by_ordinal(waiting.manifest) if unit.ordinal >= first))


def _can_copy(previous: ReleaseManifest, job: Job, space_id: str) -> bool:
    """Return whether the release's vectors have the space and the stored type of the job."""
    return (
        previous.space_id == space_id
        and previous.settings.get("encode", {}).get("vectors") == job.encode.vectors
    )


def _report_tokens(units: Sequence[UnitRecord], previous: ReleaseManifest | None) -> None:
    """Log the unknown and lost tokens; warn if there are many of them, or many rejected texts."""
    known = {unit.path for unit in previous.units} if previous is not None else set()
    counts = [unit.counts for unit in units]
    tokens = token_counts(counts, [unit.counts for unit in units if unit.path not in known])
    sums, covered = sum_counts(counts), ScriptCoverage.of(tokens)
    if covered.scripts:
        announce(f"tokens: {covered.total.sentence}")
    for sentence in (*token_warnings(tokens), *rejected_warnings(sums, sums.get("rows", 0))):
        announce(f"warning: {sentence}")


def count_unencoded_rows(
    corpus: Corpus, job: Job, store: Store, previous: ReleaseManifest | None = None
) -> int:
    """Return the number of rows in units that are not encoded yet.

    Args:
        previous: the previous release.
    """
    records = load_records(store, corpus, job, previous)
    return sum(unit.rows for unit in corpus.units if unit.sha256 not in records)


def load_records(
    store: Store, corpus: Corpus, job: Job, previous: ReleaseManifest | None
) -> dict[str, UnitRecord]:
    """Load the records of the units that are encoded already, by the sha256 of their corpus unit.

    A record is left out if one of its files is missing or has another size in the listing of its folder. If
    this is true of its sample only, the record is returned without a sample.

    Args:
        previous: the previous release. If it has a table of its units, the records are made from that table.
    """
    space_id = open_folder(job.encoder).space_id
    paths = [record_path(space_id, unit, job.encode, job.corpus.id) for unit in corpus.units]
    folders = (
        paths[0].rpartition("/")[0],
        f"moments/{space_id[:16]}",
        f"quarantine/{space_id[:16]}",
        sample_folder(space_id),
    )
    listed = ListedFiles(store, folders)
    known = _released_records(previous, space_id)
    others = [path for path in paths if path not in known and listed.has(path)]
    found = in_threads(lambda path: load_record(store, path, space_id), others)
    known |= dict(zip(others, found, strict=True))

    def complete(path: str) -> UnitRecord | None:
        record = known.get(path)
        if record is None or not listed.has(path):
            return None
        if record.sample and not listed.has(record.sample.path, record.sample.bytes):
            record = record.model_copy(update={"sample": None})
        return record if all(listed.has(file.path, file.bytes) for file in record.references()) else None

    records = map(complete, paths)
    return {unit.sha256: record for unit, record in zip(corpus.units, records, strict=True) if record}


def _released_records(previous: ReleaseManifest | None, space_id: str) -> dict[str, UnitRecord | None]:
    """Return the records of a release's units of vectors by path; {} if they are of another space."""
    if previous is None or previous.space_id != space_id:
        return {}
    return {unit.record: record for unit in previous.units if (record := unit.vectors_record())}


def _waiting_note(stats: WorkerStats) -> str:
    """Return a note on the time that workers waited for tokenizer and store; empty if nothing was encoded."""
    waiting = stats.waiting_proportions()
    if not waiting:
        return ""
    return (
        f"{stats.tokens:,} tokens with special ones; workers waited {waiting['tokenizer']:.1%} for the "
        f"tokenizer, {waiting['store']:.1%} for the store"
    )
