"""The stages of a night up to a candidate, each resumable by what it left in the store."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.flows.changes import Changes, CompareKeys
from pipeline.flows.cluster import Cluster, connect
from pipeline.flows.encode import encode
from pipeline.flows.index import build_index
from pipeline.flows.placed import Placed
from pipeline.flows.shards import BuiltIndex
from pipeline.flows.unit import Spent
from pipeline.flows.units import Pool, run_task
from pipeline.flows.whiten import Decision, whiten, write_whitened
from pipeline.index.kinds import plan_index
from pipeline.log import Stages, packages, say
from pipeline.models.folder import EncoderFolder, open_folder
from pipeline.settings import Job
from pipeline.store.release import EncoderFiles, IndexFiles, ReleaseManifest, Releases, ReleaseUnit
from pipeline.store.store import Store, open_store
from pipeline.store.units import Corpus, FileRef, Manifest, total
from pipeline.text.docstrings import harvest_docstrings
from pipeline.text.ingest import corpus_digest, ingest, record_path
from pipeline.text.sources import list_files

_ENOUGH_ROWS = 10_000_000       # to try out a kind of index whatever it wants for its training
PACKAGES = ("manta-embeddings", "ray", "torch", "transformers", "tokenizers", "pyarrow", "faiss-cpu", "faiss-gpu", "numpy", "fsspec", "s3fs")


def open_releases(job: Job) -> Releases:
    """The releases below release.root, with their commits where release.commits_root says."""
    return Releases(open_store(job.release.root), open_store(job.release.commits_root) if job.release.commits_root else None)


def fill_corpus(job: Job, stages: Stages) -> None:
    """Write the harvested corpus to corpus.uri, where the job asks for one; equal content is not written again."""
    if job.corpus.harvest == "docstrings":
        with stages("harvest") as bar:
            bar.add(harvest_docstrings(job.corpus.uri, job.corpus.max_rows))


def ingest_corpus(job: Job, store: Store, stages: Stages) -> Corpus:
    """The corpus as units: read, sifted and keyed."""
    with stages("ingest") as bar:
        before = 0

        def progress(rows: int, _: int) -> None:
            nonlocal before
            bar.add(rows - before)
            before = rows

        corpus = ingest(job.corpus, job.encode.unit_rows, store, on_progress=progress)
        bar.stage.note = f"{corpus.rows:,} good in {len(corpus.units)} units, {corpus.counts['quarantined']:,} quarantined"
    return corpus


@dataclass(frozen=True)
class Candidate:
    """What a night built, before the gates: the manifest and what the report tells beside it."""

    manifest: ReleaseManifest
    corpus: Corpus
    vectors: Manifest
    spent: Spent
    decision: Decision
    built: BuiltIndex
    folder: EncoderFolder


def unchanged(job: Job, before: ReleaseManifest | None) -> bool:
    """Whether the published release is what the job would make: same files, same space, same settings. Imports neither torch nor Ray."""
    if before is None:
        return False
    digest, folder = corpus_digest(job.corpus, job.encode.unit_rows, list_files(job.corpus)), open_folder(job.encoder)
    same_encoder = before.space_id == folder.space_id and before.encoder.path == encoder_place(folder)
    return before.corpus.path == record_path(digest) and same_encoder and _shaping(job) == _shaping_of(before)


def _shaping(job: Job) -> dict[str, object]:
    """Settings that change what is published."""
    settings = job.model_dump(mode="json")
    whiten = {name: value for name, value in settings["whiten"].items() if name != "write_vectors"}
    index = {name: value for name, value in settings["index"].items() if name != "shards"}
    return {
        "whiten": whiten, "index": index, "vectors": settings["encode"]["vectors"], "nprobe for": settings["gates"]["recall_at_10"],
        "query_prompt": settings["encoder"]["query_prompt"], "id": settings["corpus"]["id"],
    }


def _shaping_of(before: ReleaseManifest) -> dict[str, object]:
    try:
        return _shaping(Job.model_validate(before.settings))
    except ValueError:                                  # written by a version with other settings: build anew
        return {}


def check_kind(job: Job) -> None:
    """ConfigError for an index that faiss cannot make of this encoder's vectors, before any work is done for it."""
    plan_index(_ENOUGH_ROWS, open_folder(job.encoder).dim, job.index)


def build_candidate(job: Job, releases: Releases, before: ReleaseManifest | None, corpus: Corpus, cluster: Cluster, stages: Stages) -> Candidate:
    """Encode, whiten and index the corpus; what an earlier run finished is kept."""
    store, folder = releases.store, open_folder(job.encoder)
    if before is not None and before.space_id != folder.space_id:
        say(f"the encoder's space {folder.space_id[:16]} is not that of release {before.release} ({before.space_id[:16]}): all texts are encoded anew")
    vectors, spent = encode(corpus, job, store, cluster, stages)
    decision = whiten(job, store, corpus, vectors, cluster, stages)
    ordinals, following = number_units(corpus, before, releases.next_ordinal())
    units = [Placed(ordinal=ordinal, unit=unit) for ordinal, unit in zip(ordinals, vectors.units, strict=True)]
    built = build_index(job, store, units, None, decision.transform, folder.dim, cluster, stages)
    changes = run_task(CompareKeys(store), (_corpus_of(store, before), corpus), Pool(1))
    if built.rows != vectors.rows:
        raise DataError("index", f"{vectors.rows:,} rows, as encoded", f"{built.rows:,}", "remove indexes/work below the root and run again")
    encoder = keep_encoder(folder, store)
    manifest = _manifest(job, before, corpus, vectors, decision, built, encoder, (ordinals, following), folder, changes)
    return Candidate(manifest, corpus, vectors, spent, decision, built, folder)


def number_units(corpus: Corpus, before: ReleaseManifest | None, following: int) -> tuple[list[int], int]:
    """An ordinal for each unit: the one it had in the release before, else the next free one. Ordinals are never used again for other texts."""
    known = {unit.corpus.sha256: unit.ordinal for unit in before.units} if before else {}
    ordinals = []
    for unit in corpus.units:
        if unit.sha256 in known:
            ordinals.append(known.pop(unit.sha256))
        else:
            ordinals.append(following)
            following += 1
    return ordinals, following


def encoder_place(folder: EncoderFolder) -> str:
    """Where the copy of an encoder's files is kept: by all of them, since files that no vector depends on (prompts, versions) make another folder too."""
    return f"encoders/{digest_of(dict(folder.files))[:24]}"


def keep_encoder(folder: EncoderFolder, store: Store) -> EncoderFiles:
    """The release's own copy of the encoder's files, stored once."""
    top, references = encoder_place(folder), []
    for name, sha256 in sorted(folder.files.items()):
        file = folder.file(name)
        if store.size(f"{top}/{name}") != file.stat().st_size:
            store.write(f"{top}/{name}", file.read_bytes())
        references.append(FileRef(path=name, sha256=sha256, bytes=file.stat().st_size))
    return EncoderFiles(path=top, files=tuple(references))


def _manifest(
    job: Job, before: ReleaseManifest | None, corpus: Corpus, vectors: Manifest, decision: Decision, built: BuiltIndex, encoder: EncoderFiles,
    numbering: tuple[Sequence[int], int], folder: EncoderFolder, changes: Changes,
) -> ReleaseManifest:
    content = corpus.to_json()
    numerics: dict[str, int] = {}
    for record in vectors.units:
        numerics[record.numerics_id or ""] = numerics.get(record.numerics_id or "", 0) + record.rows
    return ReleaseManifest(
        parent=before.release if before else None,
        space_id=folder.space_id,
        transform_id=decision.transform.transform_id if decision.transform else None,
        transform=decision.ref if decision.used else None,
        moments=decision.moments_ref,
        numerics=numerics,
        rows=vectors.rows,
        units=_units(corpus, vectors, numbering[0], job),
        next_ordinal=numbering[1],
        index=IndexFiles(kind=built.kind, factory=built.factory, dim=built.dim, parts=built.parts, files=built.files, settings=built.settings),
        ids=built.ids,
        encoder=encoder,
        corpus=FileRef(path=record_path(corpus.digest), sha256=sha256_hex(content), rows=corpus.rows, bytes=len(content)),
        counts=counts(corpus, vectors, before, changes),
        settings=job.model_dump(mode="json"),
        packages=packages(*PACKAGES),
    )


def _units(corpus: Corpus, vectors: Manifest, ordinals: Sequence[int], job: Job) -> tuple[ReleaseUnit, ...]:
    from pipeline.flows.unit import record_path as vectors_record

    return tuple(
        ReleaseUnit(
            ordinal=ordinal, path=unit.path, rows=unit.rows, sha256=unit.sha256, space_id=unit.space_id or "", numerics_id=unit.numerics_id or "",
            corpus=FileRef(path=text.path, sha256=text.sha256, rows=text.rows, bytes=text.bytes), dropped=unit.dropped, moments=unit.moments,
            record=vectors_record(unit.space_id or "", text, job.encode, job.corpus.id), quarantine=unit.quarantine,
        )
        for ordinal, unit, text in zip(ordinals, vectors.units, corpus.units, strict=True)
    )


def counts(corpus: Corpus, vectors: Manifest, before: ReleaseManifest | None, changes: Changes) -> dict[str, int]:
    """Rows of the night: total = rows + quarantined. new, changed and deleted compare ids and texts with the release before; reused rows lie in units that it had."""
    encoded = vectors.counts()
    known = {unit.corpus.sha256 for unit in before.units} if before and before.space_id == vectors.units[0].space_id else set()
    reused = sum(record.rows for unit, record in zip(corpus.units, vectors.units, strict=True) if unit.sha256 in known)
    found = {
        "total": corpus.counts["rows"], "new": changes.new, "changed": changes.changed, "deleted": changes.deleted, "reused": reused, "encoded": vectors.rows - reused,
        "quarantined": corpus.counts["quarantined"] + encoded.get("quarantined", 0), "skipped": corpus.counts.get("skipped", 0),
        "truncated": encoded.get("truncated", 0), "tokens": encoded.get("tokens", 0),
    }
    kept = ("control_characters", "surrogates_replaced", "bad_files", "skipped_files")
    reasons = {name: count for name, count in total((corpus.counts, encoded)).items() if name.startswith("quarantined_") or name in kept}
    return found | reasons


def _corpus_of(store: Store, release: ReleaseManifest | None) -> Corpus | None:
    return Corpus.load(store, release.corpus.path) if release else None


def sha256_hex(content: bytes) -> str:
    from hashlib import sha256

    return sha256(content).hexdigest()


def through_encoding(job: Job, stages: Stages, *, verbose: bool = False) -> tuple[Store, Corpus, Manifest]:
    """The corpus's embedding units, alone."""
    store, corpus = _opened(job, stages)
    with connect(job.cluster, stages, verbose=verbose) as cluster:
        vectors, _ = encode(corpus, job, store, cluster, stages)
    return store, corpus, vectors


def through_whitening(job: Job, stages: Stages, *, verbose: bool = False) -> tuple[Store, Decision, Manifest | None]:
    """The decision about whitening, and with whiten.write_vectors the units of whitened vectors."""
    store, corpus = _opened(job, stages)
    with connect(job.cluster, stages, verbose=verbose) as cluster:
        vectors, _ = encode(corpus, job, store, cluster, stages)
        decision = whiten(job, store, corpus, vectors, cluster, stages)
        written = write_whitened(store, vectors, decision.fitted, cluster, job, stages) if job.whiten.write_vectors and decision.fitted else None
    return store, decision, written


def through_index(job: Job, stages: Stages, *, verbose: bool = False) -> tuple[Store, BuiltIndex]:
    """The index that a night would publish, built and measured."""
    releases = open_releases(job)
    check_kind(job)
    store, corpus = _opened(job, stages)
    with connect(job.cluster, stages, verbose=verbose) as cluster:
        built = build_candidate(job, releases, releases.current(), corpus, cluster, stages).built
    return store, built


def _opened(job: Job, stages: Stages) -> tuple[Store, Corpus]:
    store = open_store(job.release.root)
    open_folder(job.encoder)                            # an encoder that cannot be used shows before any work
    fill_corpus(job, stages)
    return store, ingest_corpus(job, store, stages)
