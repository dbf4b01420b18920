"""The stages of a night up to a candidate, each resumable by what it left in the store."""

from pipeline.errors import DataError
from pipeline.flows.corpus import fill_corpus, open_releases, read_corpus
from pipeline.flows.encode.encode import encode, waiting_rows
from pipeline.flows.encode.encoder_copy import keep_encoder
from pipeline.flows.index import rules
from pipeline.flows.index.build import IndexInput, build_index
from pipeline.flows.index.extend import extend_index
from pipeline.flows.index.tasks import BuiltIndex
from pipeline.flows.night.candidate import Candidate, CandidateParts, Live, make_manifest
from pipeline.flows.night.previous import PreviousRelease, load_previous
from pipeline.flows.rows import LiveRows, place
from pipeline.flows.run import Run
from pipeline.flows.transform.decide import Decision, check_dev, decide_transform
from pipeline.flows.transform.train_flow import check_flow
from pipeline.flows.transform.write import write_whitened
from pipeline.flows.workers.cluster import connect, is_local
from pipeline.index.plan import plan_index
from pipeline.log import Stages, say
from pipeline.models.folder.folder import open_folder
from pipeline.post.chain import check_transform
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import Choice, ReleaseManifest
from pipeline.store.release import Releases
from pipeline.store.units import Corpus, Manifest

_ENOUGH_ROWS = 10_000_000  # to try out a kind of index whatever it wants for its training
_SMALL_INDEX = (
    500_000  # rows; rewriting a larger index takes longer than starting Ray, whose workers share the work
)


def ingest_corpus(job: Job, releases: Releases, previous: PreviousRelease, stages: Stages) -> Corpus:
    """Read tonight's corpus into units.

    Changed files are read, sifted and keyed; all others keep their units.
    """
    parent = previous.parent(job, releases.next_ordinal())
    corpus = read_corpus(job.corpus, job.encode.unit_rows, releases.store, parent, stages)
    if previous.release is not None:
        say(f"corpus: {corpus_choice(corpus, previous).sentence}")
    return corpus


def corpus_choice(corpus: Corpus, previous: PreviousRelease) -> Choice:
    """Describe how tonight's corpus came about, with its numbers."""
    changes, then = corpus.changes, previous.corpus
    new_units = [unit for unit in corpus.units if then is None or unit.ordinal >= then.next_ordinal]
    rows, dead = sum(unit.rows for unit in corpus.units), sum(unit.dead for unit in corpus.units)
    numbers = {
        "files": len(corpus.files),
        "files_read": corpus.read_files,
        "new": changes.new,
        "changed": changes.changed,
        "deleted": changes.deleted,
        "unchanged": changes.unchanged,
        "rows_in_new_units": sum(unit.rows for unit in new_units),
        "dead_rows": dead,
        "unit_rows": rows,
    }
    counted = f"{changes.new:,} rows new, {changes.changed:,} changed, {changes.deleted:,} deleted"
    counted += f", {changes.unchanged:,} unchanged"
    read = f"{corpus.read_files} of {len(corpus.files)} files were read"
    if previous.release is None:
        chosen, sentence = "first", f"{counted}; {read}"
    elif corpus.anew:
        chosen, sentence = "anew", f"all rows stand in new units, since {corpus.anew}: {counted}; {read}"
    else:
        kept = f"{dead:,} of the units' {rows:,} rows are dead"
        chosen, sentence = "kept", f"{counted} since release {previous.release.release}; {read}, {kept}"
    return Choice(what="corpus", chosen=chosen, sentence=sentence, numbers=numbers)


def may_be_small(job: Job, previous: PreviousRelease) -> bool:
    """True if local workers may suffice tonight, as far as the previous release shows."""
    rows = previous.release.rows if previous.release is not None else 0
    return bool(job.cluster.small_rows) and is_local(job.cluster) and rows <= _SMALL_INDEX


def is_small(job: Job, store: Store, corpus: Corpus) -> bool:
    """True if local workers finish tonight's work before Ray would have started."""
    return corpus.rows <= _SMALL_INDEX and waiting_rows(corpus, job, store) <= job.cluster.small_rows


def check_kind(job: Job, previous: ReleaseManifest | None = None) -> None:
    """Check index, transform and whiten.dev before any work is done for them.

    Args:
        previous: the release whose decision about the transform may be kept.

    Raises:
        ConfigError: faiss cannot make the index of this encoder's vectors, or the transform cannot be part of
        it. DataError: whiten.dev cannot be used.
    """
    if job.whiten.mode != "off":
        check_transform(job.whiten, indexed=True)
    check_dev(job.whiten, previous)
    plan_index(_ENOUGH_ROWS, open_folder(job.encoder).dim, job.index)


def build_candidate(run: Run, previous: PreviousRelease, corpus: Corpus) -> Candidate:
    """Encode, transform and index the corpus; whatever an earlier run finished is kept."""
    job, store, folder = run.job, run.store, open_folder(run.job.encoder)
    encoder = keep_encoder(folder, store)
    vectors, timings = encode(run, corpus, previous.release)
    units = place(corpus, vectors)
    source = LiveRows(store, folder.space_id, job.corpus.id, corpus.dead)
    decision = decide_transform(run, source, corpus, units, previous.release)
    live = Live(units, Dead.load(store, corpus.dead))
    index_input = IndexInput(units, corpus.dead, decision.transform, folder.dim)
    index, choices = _extend_or_build(run, index_input, corpus, previous.release)
    if index.rows != live.rows:
        remedy = "remove indexes/work below the root and run again"
        raise DataError("index", f"{live.rows:,} rows, as encoded", f"{index.rows:,}", remedy)
    choices = (corpus_choice(corpus, previous), decision.choice(), *choices)
    manifest = make_manifest(run, previous, CandidateParts(corpus, live, decision, index, encoder, choices))
    return Candidate(manifest, corpus, vectors, timings, decision, index, folder)


def _extend_or_build(
    run: Run, vectors: IndexInput, corpus: Corpus, previous: ReleaseManifest | None
) -> tuple[BuiltIndex, tuple[Choice, ...]]:
    """Extend last night's index if its rows are still part of this space, else build one; with the decisions
    made.
    """
    choices: tuple[Choice, ...]
    if previous is not None and not corpus.anew and previous.space_id == vectors.units[0].unit.space_id:
        index, choices = extend_index(run, vectors, previous)
    else:
        index = build_index(run, vectors)
        if previous is None:
            why = "the first of this root"
        else:
            why = "all rows have new addresses" if corpus.anew else "the vectors are of another space"
        choices = (Choice(what="index", chosen="built anew", sentence=f"built anew: {why}"),)
    if near := rules.near_dead(index.measured, run.job.gates.wanted_recall):
        choices = (*choices, near)
    for choice in choices:
        say(f"index: {choice.sentence}")
    for sentence in rules.near_dead_warnings(choices):
        say(f"warning: {sentence}")
    kind = f"{index.plan.factory}: {index.plan.why}"
    return index, (*choices, Choice(what="index kind", chosen=index.plan.kind, sentence=kind))


def through_encoding(job: Job, stages: Stages, *, verbose: bool = False) -> tuple[Store, Corpus, Manifest]:
    """Run a night up to the units of vectors."""
    releases, previous, corpus = _opened(job, stages)
    with connect(job.cluster, stages, verbose=verbose) as workers:
        vectors, _ = encode(Run(job, releases.store, workers, stages), corpus, previous.release)
    return releases.store, corpus, vectors


def through_whitening(
    job: Job, stages: Stages, *, verbose: bool = False
) -> tuple[Store, Decision, Manifest | None]:
    """Run a night up to the transform.

    With whiten.write_vectors the transformed vectors are written as units too.
    """
    check_transform(job.whiten, indexed=False)
    check_dev(job.whiten)
    check_flow(job.whiten, open_folder(job.encoder).dim)
    releases, previous, corpus = _opened(job, stages)
    store, written = releases.store, None
    with connect(job.cluster, stages, verbose=verbose) as workers:
        run = Run(job, store, workers, stages)
        vectors, _ = encode(run, corpus, previous.release)
        source = LiveRows(store, open_folder(job.encoder).space_id, job.corpus.id, corpus.dead)
        decision = decide_transform(run, source, corpus, place(corpus, vectors), previous.release)
        if job.whiten.write_vectors and decision.fitted:
            written = write_whitened(run, vectors, decision.fitted)
    return store, decision, written


def through_index(job: Job, stages: Stages, *, verbose: bool = False) -> tuple[Store, BuiltIndex]:
    """Run a night up to the index that it would publish, built and measured."""
    check_kind(job)
    releases, previous, corpus = _opened(job, stages)
    with connect(job.cluster, stages, verbose=verbose) as workers:
        index = build_candidate(Run(job, releases.store, workers, stages), previous, corpus).built
    return releases.store, index


def _opened(job: Job, stages: Stages) -> tuple[Releases, PreviousRelease, Corpus]:
    open_folder(job.encoder)  # an encoder that cannot be used shows before any work
    fill_corpus(job, stages)
    releases = open_releases(job)
    previous = load_previous(releases)
    return releases, previous, ingest_corpus(job, releases, previous, stages)
