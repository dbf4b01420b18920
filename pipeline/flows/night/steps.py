"""Steps of a night: its checks, its ingestion, and its index."""

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.judgements import read_relevance
from pipeline.flows.context import FlowContext
from pipeline.flows.corpus import corpus_of, describe_unread, read_corpus
from pipeline.flows.encode.encoder_copy import keep_encoder
from pipeline.flows.index import rebuild_rules
from pipeline.flows.index.build import IndexInput
from pipeline.flows.index.extend import extend_index
from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.night.previous_release import PreviousRelease
from pipeline.flows.night.user_queries import read_user_queries
from pipeline.flows.transform.decide import check_dev
from pipeline.index.build.index_shape import plan_index
from pipeline.log import Stages, announce, counted, packages
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
from pipeline.store.files.check_store import check_store
from pipeline.store.records.units import BAD_FILES, Corpus
from pipeline.store.releases.manifest import Choice, ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.text.ingest.chunking import row_cutter
from pipeline.text.ingest.ingest import ingest
from pipeline.text.sources.sources import check_is_outside, list_corpus
from pipeline.text.task_map import TaskMap, TaskRunner, map_here
from pipeline.transforms.chain import check_transform

_ENOUGH_ROWS = 10_000_000  # more rows than any kind of index needs for its training


def ingest_corpus(
    job: Job,
    releases: Releases,
    previous: PreviousRelease,
    stages: Stages,
    map_tasks: TaskMap = map_here,
) -> Corpus:
    """Read tonight's corpus into units. Only changed files are read; rows of other files keep their units."""
    parent, store = previous.parent_corpus(job), releases.store
    encoder = None
    if job.corpus.chunk.by is not None and map_tasks is not map_here and store.shared:
        copy = store.uri_of(keep_encoder(open_folder(job.encoder), store).path)
        encoder = job.encoder.model_copy(update={"path": copy})  # workers on other nodes read it there
    settings = corpus_of(job, encoder)
    corpus = read_corpus(
        lambda on_progress: ingest(
            settings, job.encode.unit_rows, store, parent, TaskRunner(map_tasks, on_progress)
        ),
        stages,
    )
    if previous.release is not None:
        announce(f"corpus: {corpus_choice(corpus, previous).sentence}")
    return corpus


def corpus_choice(corpus: Corpus, previous: PreviousRelease) -> Choice:
    """Describe the changes of tonight's corpus since the previous release."""
    changes = corpus.changes
    first_new = previous.corpus.next_ordinal if previous.corpus else 0  # ordinal of the first new unit
    rows, dead = sum(unit.rows for unit in corpus.units), sum(unit.dead for unit in corpus.units)
    counts = (
        f"{counted(changes.new, 'row')} new, {changes.changed:,} changed, {changes.deleted:,} deleted, "
        f"{changes.unchanged:,} unchanged"
    )
    bad = corpus.counts.get(BAD_FILES, 0)
    read = f"{corpus.read_files - bad} of {len(corpus.files)} files were read"
    if corpus.snapshot is not None:
        read = f"{read} of {corpus.snapshot}"
    if bad:
        read = f"{read}, {bad:,} could not be read"
    if unread := describe_unread(corpus):
        read = f"{read}, {unread}"
    if previous.release is None:
        chosen, sentence = "first", f"{counts}; {read}"
    elif corpus.rebuild_reason:
        chosen = "anew"
        sentence = f"all rows are in new units, since {corpus.rebuild_reason}: {counts}; {read}"
    else:
        chosen = "kept"
        sentence = (
            f"{counts} since release {previous.release.release}; {read}; {dead:,} of {rows:,} stored rows "
            "were deleted or replaced so far"
        )
    return Choice(
        what="corpus",
        chosen=chosen,
        sentence=sentence,
        numbers={
            "files": len(corpus.files),
            "files_read": corpus.read_files,
            **changes.model_dump(),
            "rows_in_new_units": sum(unit.rows for unit in corpus.units if unit.ordinal >= first_new),
            "dead_rows": dead,
            "unit_rows": rows,
        },
    )


def check_before_reading(job: Job, releases: Releases, previous: PreviousRelease) -> None:
    """Raise errors that would stop the night later; log whether the root is held or rolled back."""
    check_root(job)
    if previous.corpus is None:  # otherwise the corpus was listed to see whether it has changed
        list_corpus(
            job.corpus.model_copy(update={"fingerprint": "fast"})
        )  # raises if there is nothing to read
    check_store(releases.commits.store, creates_once=True)  # without it two nights could both publish
    check_index_and_transform(job, previous.release)
    row_cutter(corpus_of(job))  # raises if the prompt leaves no room for chunks
    read_user_queries(job.gates, open_folder(job.encoder))  # raises for an unreadable file
    if job.gates.relevance.queries is not None:
        read_relevance(job.gates.relevance)  # raises for an unreadable file, too
    if held := releases.commits.hold():
        then = "tonight's candidate is made and judged, but not published"
        announce(f"release {held.release} has been held since {held.committed_at}: {then}")
    elif previous.release is None:
        announce(f"{releases.store.uri} has no release yet: this night makes the first")
    elif (newest := releases.newest()) and previous.release.release < newest.release:
        then = "tonight's release is made from the current corpus and settings, and replaces it"
        announce(f"release {previous.release.release} is current by a rollback; {then}")


def check_root(job: Job) -> None:
    """Raise ConfigError if releases would be written among the files of the corpus, all of which are read."""
    check_is_outside(job.release.root, "release.root", job.corpus.uri, "corpus.uri")


def check_index_and_transform(job: Job, previous: ReleaseManifest | None = None) -> None:
    """Check the settings of index and transform, and whiten.dev, before any other work.

    Args:
        previous: the previous release, whose decision about the transform may be kept if it has the same
            space.

    Raises:
        ConfigError: faiss cannot make the index of this encoder's vectors, the transform cannot be part of
            the index, or GPUs are set to fill it but faiss-gpu is not installed.
        DataError: whiten.dev cannot be used.
    """
    if job.whiten.mode != "off":
        check_transform(job.whiten, indexed=True)
    folder = open_folder(job.encoder)
    check_dev(job.whiten, previous if previous and previous.space_id == folder.space_id else None)
    if job.cluster.index_gpus and "faiss-gpu" not in (installed := packages("faiss-cpu", "faiss-gpu")):
        raise ConfigError(
            f"cluster.index_gpus: {job.cluster.index_gpus:g}",
            "the package faiss-gpu",
            ", ".join(installed) or "no faiss",
            'pip uninstall faiss-cpu, then pip install -e ".[gpu]", or set cluster.index_gpus=0',
        )
    plan_index(_ENOUGH_ROWS, folder.dim, job.index)


def extend_or_build(
    context: FlowContext, vectors: IndexInput, corpus: Corpus, previous: ReleaseManifest | None
) -> tuple[BuiltIndex, tuple[Choice, ...]]:
    """Extend last night's index or build one, and log why. Returns the index and the decisions about it."""
    index, choices = extend_index(context, vectors, previous, new_addresses=bool(corpus.rebuild_reason))
    if near_dead := rebuild_rules.near_dead(index.measured, context.job.gates.wanted_recall):
        choices = (*choices, near_dead)
    if for_users := rebuild_rules.for_users(index.measured, context.job.gates.wanted_user_recall):
        choices = (*choices, for_users)
    for choice in choices:
        announce(f"index: {choice.sentence}")
    for sentence in rebuild_rules.near_dead_warnings(choices):
        announce(f"warning: {sentence}")
    plan = index.plan
    return index, (
        *choices,
        Choice(what="index kind", chosen=plan.kind, sentence=f"{plan.factory}: {plan.why}"),
    )


def check_row_count(index: BuiltIndex, live_rows: int) -> None:
    """Raise DataError if the index does not have as many rows as are live."""
    if index.rows != live_rows:
        raise DataError(
            "index",
            f"{live_rows:,} rows, as encoded",
            f"{index.rows:,}",
            "remove indexes/work below the root and run again",
        )
