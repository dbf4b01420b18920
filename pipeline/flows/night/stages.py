"""The stages of a night up to a candidate, each resumable by what it left in the store."""

from collections.abc import Sequence

from pipeline.errors import DataError
from pipeline.flows.encode.encode import encode, waiting_rows
from pipeline.flows.encode.encoder_copy import keep_encoder
from pipeline.flows.index import rules
from pipeline.flows.index.build import build_index
from pipeline.flows.index.extend import extend_index
from pipeline.flows.index.tasks import BuiltIndex
from pipeline.flows.night.candidate import Candidate, Live, make_manifest
from pipeline.flows.night.previous import Before, load_before
from pipeline.flows.rows import LiveRows, Placed
from pipeline.flows.transform.decide import Decision, check_dev, whiten
from pipeline.flows.transform.train_flow import check_flow
from pipeline.flows.transform.write import write_whitened
from pipeline.flows.workers.cluster import Cluster, connect, is_local
from pipeline.index.kinds import plan_index
from pipeline.log import Stages, say
from pipeline.models.folder.folder import open_folder
from pipeline.post.chain import check_transform
from pipeline.settings import CorpusSettings, Job
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import Choice, ReleaseManifest
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from pipeline.store.units import Corpus, Manifest
from pipeline.text.corpus.docstrings import harvest_docstrings
from pipeline.text.corpus.ingest import Parent, ingest

_ENOUGH_ROWS = 10_000_000  # to try out a kind of index whatever it wants for its training
_SMALL_INDEX = (
    500_000  # rows: rewriting the index of more takes longer than starting Ray, whose workers share the rest
)


def open_releases(job: Job) -> Releases:
    """The releases below release.root, with their commits where release.commits_root says."""
    return Releases(
        open_store(job.release.root),
        open_store(job.release.commits_root) if job.release.commits_root else None,
    )


def fill_corpus(job: Job, stages: Stages) -> None:
    """Write the harvested corpus to corpus.uri, where the job asks for one; equal content is not written again."""
    if job.corpus.harvest == "docstrings":
        with stages("harvest") as bar:
            bar.add(harvest_docstrings(job.corpus.uri, job.corpus.max_rows))


def ingested(
    settings: CorpusSettings, unit_rows: int, store: Store, parent: Parent, stages: Stages
) -> Corpus:
    """The corpus as units that go on from `parent`, as a stage of its own."""
    with stages("ingest") as bar:
        seen = 0

        def progress(rows: int, _: int) -> None:
            nonlocal seen
            bar.add(rows - seen)
            seen = rows

        corpus = ingest(settings, unit_rows, store, parent, on_progress=progress)
        bar.stage.note = f"{corpus.rows:,} live rows in {len(corpus.units)} units, {corpus.counts['quarantined']:,} quarantined"
    return corpus


def ingest_corpus(job: Job, releases: Releases, before: Before, stages: Stages) -> Corpus:
    """Tonight's corpus as units: what changed is read, sifted and keyed, the rest is taken over."""
    corpus = ingested(
        job.corpus, job.encode.unit_rows, releases.store, before.parent(job, releases.next_ordinal()), stages
    )
    if before.release is not None:
        say(f"corpus: {corpus_choice(corpus, before).sentence}")
    return corpus


def corpus_choice(corpus: Corpus, before: Before) -> Choice:
    """How tonight's corpus came about, with its numbers."""
    changes, fresh = (
        corpus.changes,
        sum(
            unit.rows
            for unit in corpus.units
            if before.corpus is None or unit.ordinal >= before.corpus.next_ordinal
        ),
    )
    rows, dead = sum(unit.rows for unit in corpus.units), sum(unit.dead for unit in corpus.units)
    numbers = {
        "files": len(corpus.files),
        "files_read": corpus.read_files,
        "new": changes.new,
        "changed": changes.changed,
        "deleted": changes.deleted,
        "unchanged": changes.unchanged,
        "rows_in_new_units": fresh,
        "dead_rows": dead,
        "unit_rows": rows,
    }
    counted = f"{changes.new:,} rows new, {changes.changed:,} changed, {changes.deleted:,} deleted, {changes.unchanged:,} unchanged"
    read = f"{corpus.read_files} of {len(corpus.files)} files were read"
    if before.release is None:
        return Choice(what="corpus", chosen="first", sentence=f"{counted}; {read}", numbers=numbers)
    if corpus.anew:
        return Choice(
            what="corpus",
            chosen="anew",
            sentence=f"all rows stand in new units, since {corpus.anew}: {counted}; {read}",
            numbers=numbers,
        )
    kept = f"{dead:,} of the units' {rows:,} rows are dead"
    return Choice(
        what="corpus",
        chosen="kept",
        sentence=f"{counted} since release {before.release.release}; {read}, {kept}",
        numbers=numbers,
    )


def may_be_small(job: Job, before: Before) -> bool:
    """Whether one process may be all that tonight needs: worth having one warm before it is known."""
    rows = before.release.rows if before.release is not None else 0
    return bool(job.cluster.small_rows) and is_local(job.cluster) and rows <= _SMALL_INDEX


def is_small(job: Job, store: Store, corpus: Corpus) -> bool:
    """Whether one process does tonight's work before Ray has started."""
    return corpus.rows <= _SMALL_INDEX and waiting_rows(corpus, job, store) <= job.cluster.small_rows


def check_kind(job: Job, before: ReleaseManifest | None = None) -> None:
    """ConfigError for an index that faiss cannot make of this encoder's vectors, or for a transform that cannot stand in it, and DataError for a whiten.dev that
    cannot be used, before any work is done for it. before: the release whose decision may stand.
    """
    if job.whiten.mode != "off":
        check_transform(job.whiten, indexed=True)
    check_dev(job.whiten, before)
    plan_index(_ENOUGH_ROWS, open_folder(job.encoder).dim, job.index)


def build_candidate(
    job: Job, releases: Releases, before: Before, corpus: Corpus, cluster: Cluster, stages: Stages
) -> Candidate:
    """Encode, whiten and index the corpus; what an earlier run finished is kept."""
    store, folder = releases.store, open_folder(job.encoder)
    encoder = keep_encoder(folder, store)
    vectors, spent = encode(corpus, job, store, cluster, stages, before.release)
    placed = place(corpus, vectors)
    source = LiveRows(store, folder.space_id, job.corpus.id, corpus.dead)
    decision = whiten(job, source, corpus, placed, cluster, stages, before.release)
    live = Live(placed, Dead.load(store, corpus.dead))
    built, choices = _index(job, store, before, corpus, placed, decision, folder.dim, cluster, stages)
    if built.rows != live.rows:
        raise DataError(
            "index",
            f"{live.rows:,} rows, as encoded",
            f"{built.rows:,}",
            "remove indexes/work below the root and run again",
        )
    made = (corpus_choice(corpus, before), decision.choice(), *choices)
    return Candidate(
        make_manifest(job, before, corpus, live, decision, built, encoder, made, store),
        corpus,
        vectors,
        spent,
        decision,
        built,
        folder,
    )


def place(corpus: Corpus, vectors: Manifest) -> tuple[Placed, ...]:
    """Units of vectors with the ordinals of their corpus units."""
    return tuple(
        Placed(ordinal=unit.ordinal, unit=record)
        for unit, record in zip(corpus.units, vectors.units, strict=True)
    )


def _index(
    job: Job,
    store: Store,
    before: Before,
    corpus: Corpus,
    placed: Sequence[Placed],
    decision: Decision,
    dim: int,
    cluster: Cluster,
    stages: Stages,
) -> tuple[BuiltIndex, tuple[Choice, ...]]:
    """Last night's index extended where its rows live on in this space, else one of its own; with the decisions behind it."""
    release, choices = before.release, tuple[Choice, ...]()
    if release is not None and not corpus.anew and release.space_id == placed[0].unit.space_id:
        built, choices = extend_index(
            job, store, release, placed, corpus.dead, decision.transform, dim, cluster, stages
        )
    else:
        built = build_index(job, store, placed, corpus.dead, decision.transform, dim, cluster, stages)
        why = (
            "the first of this root"
            if release is None
            else "all rows have new addresses"
            if corpus.anew
            else "the vectors are of another space"
        )
        choices = (Choice(what="index", chosen="built anew", sentence=f"built anew: {why}"),)
    if near := rules.near_dead(built.measured, job.gates.wanted_recall):
        choices = (*choices, near)
    for choice in choices:
        say(f"index: {choice.sentence}")
    for sentence in rules.near_dead_warnings(choices):
        say(f"warning: {sentence}")
    return built, (
        *choices,
        Choice(what="index kind", chosen=built.plan.kind, sentence=f"{built.plan.factory}: {built.plan.why}"),
    )


def through_encoding(job: Job, stages: Stages, *, verbose: bool = False) -> tuple[Store, Corpus, Manifest]:
    """The corpus's embedding units, alone."""
    releases, before, corpus = _opened(job, stages)
    with connect(job.cluster, stages, verbose=verbose) as cluster:
        vectors, _ = encode(corpus, job, releases.store, cluster, stages, before.release)
    return releases.store, corpus, vectors


def through_whitening(
    job: Job, stages: Stages, *, verbose: bool = False
) -> tuple[Store, Decision, Manifest | None]:
    """The decision about whitening, and with whiten.write_vectors the units of transformed vectors."""
    check_transform(job.whiten, indexed=False)
    check_dev(job.whiten)
    check_flow(job.whiten, open_folder(job.encoder).dim)
    releases, before, corpus = _opened(job, stages)
    store = releases.store
    with connect(job.cluster, stages, verbose=verbose) as cluster:
        vectors, _ = encode(corpus, job, store, cluster, stages, before.release)
        source = LiveRows(store, open_folder(job.encoder).space_id, job.corpus.id, corpus.dead)
        decision = whiten(job, source, corpus, place(corpus, vectors), cluster, stages, before.release)
        written = (
            write_whitened(store, vectors, decision.fitted, cluster, job, stages)
            if job.whiten.write_vectors and decision.fitted
            else None
        )
    return store, decision, written


def through_index(job: Job, stages: Stages, *, verbose: bool = False) -> tuple[Store, BuiltIndex]:
    """The index that a night would publish, built and measured."""
    check_kind(job)
    releases, before, corpus = _opened(job, stages)
    with connect(job.cluster, stages, verbose=verbose) as cluster:
        built = build_candidate(job, releases, before, corpus, cluster, stages).built
    return releases.store, built


def _opened(job: Job, stages: Stages) -> tuple[Releases, Before, Corpus]:
    open_folder(job.encoder)  # an encoder that cannot be used shows before any work
    fill_corpus(job, stages)
    releases = open_releases(job)
    before = load_before(releases)
    return releases, before, ingest_corpus(job, releases, before, stages)
