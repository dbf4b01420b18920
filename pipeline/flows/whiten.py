"""Moments of all units become a whitening, and a decision whether the published index uses it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.flows.cluster import Cluster
from pipeline.flows.encoders import for_workers
from pipeline.flows.live import live_moments
from pipeline.flows.placed import LiveRows, Placed
from pipeline.flows.probe import EncodeTexts, SampleTexts
from pipeline.flows.process import arithmetic
from pipeline.flows.units import Pool, map_units, run_task
from pipeline.log import Stages, say
from pipeline.post.compare import MIN_WORDS, Comparison, compare_halves, compare_pairs, split_halves
from pipeline.post.whitening import Whitening, fit_whitening
from pipeline.settings import Job
from pipeline.stats.drift import drift
from pipeline.stats.moments import Moments
from pipeline.store.release import Choice, ReleaseManifest, Whitened
from pipeline.store.schema import checked_space, vector_column, vector_matrix, vectors_schema, writer_options
from pipeline.store.store import Store, open_store, sha256_of
from pipeline.store.units import Corpus, FileRef, Manifest, UnitRecord, create_record, stored_by_content

_SHORTEST = 2 * MIN_WORDS - 1       # characters: eight words of one letter


@dataclass(frozen=True)
class Decision:
    """The fit, whether it is used, and the sentence that says why. fitted: None where nothing was or could be fitted."""

    moments: Moments
    moments_ref: FileRef
    fitted: Whitening | None
    used: bool
    sentence: str
    comparison: Comparison | None = None
    ref: FileRef | None = None
    since: Whitened | None = None
    """the decision of an earlier night that is kept; None for one made tonight"""
    numbers: dict[str, float | int | None] = field(default_factory=dict)

    @property
    def transform(self) -> Whitening | None:
        """What the index applies."""
        return self.fitted if self.used else None

    def whitened(self) -> Whitened:
        """What later nights need to know."""
        return self.since or Whitened(fitted=self.ref, fitted_on=self.moments_ref, used=self.used, sentence=self.sentence)

    def choice(self) -> Choice:
        """For the report."""
        numbers = self.numbers or ({} if self.comparison is None else self.comparison.numbers())
        return Choice(what="whitening", chosen=f"{'kept' if self.since else 'decided'}, {'used' if self.used else 'not used'}", sentence=self.sentence, numbers=numbers)


def whiten(
    job: Job, source: LiveRows, corpus: Corpus, units: Sequence[Placed], cluster: Cluster, stages: Stages, before: ReleaseManifest | None = None
) -> Decision:
    """What the release before decided, while the vectors are where they were then; else a new fit, decided by `whiten.mode`.

    `on` with too few rows for the fit is a DataError; `auto` then stays raw.
    """
    store = source.store
    with stages("whiten") as bar:
        moments = live_moments(job, source, units, cluster)
        reference = stored_by_content(store, moments.to_bytes(), "moments/merged", ".safetensors", rows=moments.count)
        kept = _kept(job, store, moments, reference, before)
        decision = kept or _decide(job, store, corpus, source.space_id, moments, reference, cluster)
        bar.stage.note = "used" if decision.used else "not used"
    say(decision.sentence)
    return decision


def _kept(job: Job, store: Store, moments: Moments, reference: FileRef, before: ReleaseManifest | None) -> Decision | None:
    """The decision of the release before; None where it has to be made anew, and the reason is said then."""
    if before is None or before.whitening is None or before.settings.get("whiten") != job.whiten.model_dump(mode="json"):
        return None
    then = before.whitening
    if then.fitted is None:                             # it was off, or there were too few rows for a fit
        return None
    moved = drift(Moments.from_bytes(store.read_checked(then.fitted_on.path, then.fitted_on.sha256)), moments)
    numbers: dict[str, float | int | None] = {"shift": moved.shift, "spread": moved.spread, "outside": moved.outside, "max_drift": job.whiten.max_drift}
    figures = f"drift {moved.distance:.4f} (shift {moved.shift:.4f}, spread {moved.spread:.4f}, outside {moved.outside:.4f})"
    if moved.distance > job.whiten.max_drift:
        say(f"the whitening is fitted anew: {figures} since it was fitted exceeds whiten.max_drift {job.whiten.max_drift:g}")
        return None
    fitted = Whitening.from_bytes(store.read_checked(then.fitted.path, then.fitted.sha256))
    sentence = f"The whitening of release {before.release} is kept, {'used' if then.used else 'not used'}: {figures} of at most {job.whiten.max_drift:g}."
    return Decision(moments, reference, fitted, then.used, sentence, None, then.fitted, then, numbers)


def _decide(job: Job, store: Store, corpus: Corpus, space_id: str, moments: Moments, reference: FileRef, cluster: Cluster) -> Decision:
    mode = job.whiten.mode
    if mode == "off":
        return Decision(moments, reference, None, False, "Whitening is off (whiten.mode).")
    try:
        fitted = fit_whitening(moments, _components(job.whiten.k), space_id=space_id)
    except DataError as error:
        if mode == "on":
            raise
        return Decision(moments, reference, None, False, f"Whitening is not used: it cannot be fitted ({error}).")
    if fitted.shortage:
        if mode == "on":
            raise DataError("whiten", "enough rows for the fit", fitted.shortage, "lower whiten.k, give more text, or set whiten.mode to auto or off")
        return Decision(moments, reference, None, False, f"Whitening is not used: {fitted.shortage}.")
    content = fitted.to_bytes()
    path = f"transforms/{fitted.transform_id[:24]}.safetensors"
    store.write(path, content)
    ref = FileRef(path=path, sha256=sha256(content).hexdigest(), rows=fitted.fitted_rows, bytes=len(content))
    if mode == "on":
        return Decision(moments, reference, fitted, True, "Whitening is used (whiten.mode is on). " + ". ".join(fitted.notes) + ".", None, ref)
    comparison = _compared(job, store, corpus, fitted)
    if comparison is None:
        found = f"fewer than ten texts of {MIN_WORDS} words or more to compare on"
        return Decision(moments, reference, fitted, False, f"Whitening is not used: {found}; set whiten.dev or whiten.mode.", None, ref)
    return Decision(moments, reference, fitted, comparison.uses_whitening, f"{comparison.sentence} {'. '.join(fitted.notes)}.", comparison, ref)


def _components(k: int | str | None) -> int | None:
    if isinstance(k, str):
        raise ConfigError("whiten.k", "a number of components, or null", k, "name a number")
    return k


def _compared(job: Job, store: Store, corpus: Corpus, fitted: Whitening) -> Comparison | None:
    """Raw against whitened on `whiten.dev`, else by split-half retrieval on the corpus's own texts."""
    encoder = EncodeTexts(for_workers(job.encoder, store), arithmetic(job.encode))
    pool = Pool(1, job.cluster.cpus_per_worker, job.cluster.gpus_per_worker)
    if job.whiten.dev:
        left, right, gold = dev_pairs(job.whiten.dev)
        vectors = run_task(encoder, (*left, *right), pool)
        return compare_pairs(vectors[: len(left)], vectors[len(left) :], gold, fitted, name=job.whiten.dev)
    texts = run_task(SampleTexts(store, job.whiten.dev_texts, _SHORTEST, corpus.dead), corpus.units, Pool(1))
    halves = [pair for pair in map(split_halves, texts) if pair]
    if len(halves) < 10:
        return None
    vectors = run_task(encoder, tuple(first for first, _ in halves) + tuple(second for _, second in halves), pool)
    return compare_halves(vectors[: len(halves)], vectors[len(halves) :], fitted)


def dev_pairs(uri: str) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """sentence1, sentence2 and score of an STS file; a missing sentence reads as one blank, a missing score drops the pair."""
    place = uri if "://" in uri else str(Path(uri).expanduser().resolve())      # a link is followed here; below a root none may lead out
    parent, _, name = place.rpartition("/")
    try:
        table = pq.read_table(open_store(parent or "/").open(name))
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise DataError(f"whiten.dev: {uri}", "a Parquet file", f"{type(error).__name__}: {error}", "check the path") from None
    wanted = ("sentence1", "sentence2", "score")
    if missing := [column for column in wanted if column not in table.column_names]:
        raise DataError(f"whiten.dev: {uri}", f"columns {', '.join(wanted)}", f"{', '.join(table.column_names)}", f"add {', '.join(missing)}")
    scored = table.filter(table["score"].is_valid())
    left, right = (tuple(text or " " for text in scored[column].to_pylist()) for column in wanted[:2])
    return left, right, scored["score"].to_numpy().astype(np.float64)


@dataclass(frozen=True)
class WhitenUnit:
    """Write one embedding unit's vectors whitened, under the transform's name."""

    store: Store
    transform: Whitening

    def start(self) -> Callable[[UnitRecord], UnitRecord]:
        return self._work

    def _work(self, unit: UnitRecord) -> UnitRecord:
        name = f"{self.transform.transform_id[:16]}/{unit.sha256[:24]}"
        path = f"units/whitened/{name}.json"
        record = UnitRecord.left(self.store, path)
        if record is None or not record.is_whole(self.store):
            record = create_record(self.store, path, self._written(unit, name))
        return record

    def _written(self, unit: UnitRecord, name: str) -> UnitRecord:
        with self.store.scratch() as scratch:
            file = scratch / "whitened.parquet"
            source = checked_space(pq.ParquetFile(self.store.open(unit.path, unit.sha256)), unit.path, self.transform.space_id)
            given = source.schema_arrow
            kept = [field for field in given if field.name not in (given.names[0], "text_key", "vector")]
            space = digest_of([self.transform.space_id, self.transform.transform_id])
            schema = vectors_schema(given.names[0], given.field(0).type, kept, self.transform.k, space)
            with pq.ParquetWriter(file, schema, **writer_options(schema)) as writer:
                for table in _whitened(source, self.transform, schema):
                    writer.write_table(table)
            digest, size = sha256_of(file), file.stat().st_size
            data = f"units/whitened/{name}-{digest[:12]}.parquet"
            self.store.put(file, data)
        counts = {"rows": unit.rows}
        return UnitRecord(name=f"whitened/{name}", path=data, rows=unit.rows, bytes=size, sha256=digest, counts=counts, space_id=space, source=unit.sha256)


def _whitened(source: pq.ParquetFile, transform: Whitening, schema: pa.Schema) -> Iterator[pa.Table]:
    for batch in source.iter_batches(8_192):
        vectors = transform(vector_matrix(batch["vector"]))
        columns = [vector_column(vectors, field) if field.name == "vector" else batch[field.name] for field in schema]
        yield pa.Table.from_arrays(columns, schema=schema)


def write_whitened(store: Store, vectors: Manifest, transform: Whitening, cluster: Cluster, job: Job, stages: Stages) -> Manifest:
    """Every unit's vectors, whitened, as units of their own."""
    made: dict[int, UnitRecord] = {}
    with stages("write whitened", vectors.rows) as bar:
        for number, record in map_units(WhitenUnit(store, transform), vectors.units, Pool(cluster.index_workers(job.cluster, len(vectors.units)))):
            made[number] = record
            bar.add(record.rows)
    return Manifest(stage="whitened", units=tuple(made[number] for number in range(len(vectors.units))), parents=(vectors.id,), settings_digest=transform.transform_id)
