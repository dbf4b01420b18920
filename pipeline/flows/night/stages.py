"""The stages of a night up to a candidate. A stage that is run again reuses the files that it has stored."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pipeline.errors import ConfigError, DataError
from pipeline.flows.corpus import read_corpus
from pipeline.flows.encode.encode import count_unencoded_rows, encode
from pipeline.flows.encode.encoder_copy import encoder_for_workers, keep_encoder
from pipeline.flows.encode.probe import EncodeTexts
from pipeline.flows.index import rules
from pipeline.flows.index.build import IndexInput, build_index
from pipeline.flows.index.extend import extend_index
from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.night.candidate import Candidate, CandidateParts, LiveUnits, make_manifest
from pipeline.flows.night.previous import PreviousRelease
from pipeline.flows.rows import LiveRows, place_units
from pipeline.flows.run import Run
from pipeline.flows.transform.decide import check_dev, decide_transform
from pipeline.flows.workers.cluster import connect, is_local, local_workers
from pipeline.flows.workers.local import LocalWorkers
from pipeline.flows.workers.tasks import Pool
from pipeline.index.plan import plan_index
from pipeline.log import Stages, counted, packages, say
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import with_absolute_paths
from pipeline.post.chain import check_transform
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.dead import DeadRows
from pipeline.store.manifest import Choice, ReleaseManifest
from pipeline.store.release import Releases
from pipeline.store.units import Corpus
from pipeline.text.corpus.ingest import ingest
from pipeline.text.corpus.task_map import TaskMap, TaskRunner, map_here

_ENOUGH_ROWS = 10_000_000  # more than any kind of index needs for its training
# Local workers extend an index of at most so many rows; for more, the time to start Ray pays off.
_SMALL_INDEX_ROWS = 500_000
_TRIED_TEXT = "A sentence."


def ingest_corpus(
    job: Job,
    releases: Releases,
    previous: PreviousRelease,
    stages: Stages,
    map_tasks: TaskMap = map_here,
) -> Corpus:
    """Read tonight's corpus into units. Only changed files are read; rows of all others keep their units."""
    parent = previous.parent_corpus(job, releases.next_ordinal())
    corpus = read_corpus(
        lambda on_progress: ingest(
            job.corpus, job.encode.unit_rows, releases.store, parent, TaskRunner(map_tasks, on_progress)
        ),
        stages,
    )
    if previous.release is not None:
        say(f"corpus: {corpus_choice(corpus, previous).sentence}")
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
    read = f"{corpus.read_files} of {len(corpus.files)} files were read"
    if previous.release is None:
        chosen, sentence = "first", f"{counts}; {read}"
    elif corpus.rebuild_reason:
        chosen = "anew"
        sentence = f"all rows are in new units, since {corpus.rebuild_reason}: {counts}; {read}"
    else:
        chosen = "kept"
        sentence = (
            f"{counts} since release {previous.release.release}; {read}, {dead:,} of the units' {rows:,} "
            "rows are dead"
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


@contextmanager
def warm_workers(job: Job, previous: PreviousRelease) -> Iterator[LocalWorkers | None]:
    """Start local workers if the previous release shows that they may suffice, else yield None.

    They load the encoder while the corpus is read.
    """
    release = previous.release
    may_suffice = job.cluster.small_rows > 0 and (release is None or release.rows <= _SMALL_INDEX_ROWS)
    with local_workers(may_suffice and is_local(job.cluster), job.cluster.patience_s) as local:
        if local is not None and release is not None:
            local.warm(EncodeTexts(with_absolute_paths(job.encoder), local.encode_settings(job.encode)))
        yield local


@contextmanager
def try_encoder(
    job: Job, store: Store, stages: Stages, local: LocalWorkers | None, *, verbose: bool = False
) -> Iterator[None]:
    """Load the encoder on a worker and encode a text, before a night reads the corpus for a new space.

    Without local workers the cluster is connected, and stays so for the duration of the block.

    Raises:
        ModelError: the encoder cannot be loaded, or gives no usable vector of a plain sentence.
        ConfigError: the cluster cannot have as many workers as the settings ask for.
    """
    with ExitStack() as stack:
        connected = connect(job.cluster, stages.under("encoder"), verbose=verbose)
        workers = local or stack.enter_context(connected)
        workers.check(job.cluster)
        with stages("encoder"):
            settings = encoder_for_workers(job.encoder, store, workers)
            task = EncodeTexts(settings, workers.encode_settings(job.encode))
            workers.run(task, (_TRIED_TEXT,), Pool.of_one(job.cluster))
        yield


def is_small(job: Job, store: Store, corpus: Corpus, previous: PreviousRelease) -> bool:
    """Return whether local workers finish tonight's work before Ray would have started."""
    if corpus.rows > _SMALL_INDEX_ROWS:
        return False
    return count_unencoded_rows(corpus, job, store, previous.release) <= job.cluster.small_rows


def check_index_and_transform(job: Job, previous: ReleaseManifest | None = None) -> None:
    """Check the settings of index and transform, and whiten.dev, before any other work.

    Args:
        previous: the previous release, whose decision about the transform may be kept.

    Raises:
        ConfigError: faiss cannot make the index of this encoder's vectors, the transform cannot be part of
            it, or GPUs are to fill it without faiss-gpu.
        DataError: whiten.dev cannot be used.
    """
    if job.whiten.mode != "off":
        check_transform(job.whiten, indexed=True)
    check_dev(job.whiten, previous)
    if job.cluster.index_gpus and "faiss-gpu" not in (installed := packages("faiss-cpu", "faiss-gpu")):
        raise ConfigError(
            f"cluster.index_gpus: {job.cluster.index_gpus:g}",
            "the package faiss-gpu",
            ", ".join(installed) or "no faiss",
            'pip uninstall faiss-cpu, then pip install -e ".[gpu]", or set cluster.index_gpus=0',
        )
    plan_index(_ENOUGH_ROWS, open_folder(job.encoder).dim, job.index)


def build_candidate(run: Run, previous: PreviousRelease, corpus: Corpus) -> Candidate:
    """Encode, transform and index the corpus. Results of an earlier run are reused."""
    job, store, folder = run.job, run.store, open_folder(run.job.encoder)
    encoder = keep_encoder(folder, store)
    vectors, stats = encode(run, corpus, previous.release)
    units = place_units(corpus, vectors)
    decision = decide_transform(
        run, LiveRows(store, folder.space_id, job.corpus.id, corpus.dead), corpus, units, previous.release
    )
    live = LiveUnits(units, DeadRows(store, corpus.dead))
    index, choices = _extend_or_build(
        run, IndexInput(units, corpus.dead, decision.transform, folder.dim), corpus, previous.release
    )
    if index.rows != live.rows:
        raise DataError(
            "index",
            f"{live.rows:,} rows, as encoded",
            f"{index.rows:,}",
            "remove indexes/work below the root and run again",
        )
    choices = (corpus_choice(corpus, previous), decision.choice(), *choices)
    manifest = make_manifest(run, previous, CandidateParts(corpus, live, decision, index, encoder, choices))
    return Candidate(manifest, corpus, vectors, stats, decision, index, folder)


def _extend_or_build(
    run: Run, vectors: IndexInput, corpus: Corpus, previous: ReleaseManifest | None
) -> tuple[BuiltIndex, tuple[Choice, ...]]:
    """Extend last night's index if its rows keep their addresses and space, else build one.

    Returns:
        The index, and the decisions about it.
    """
    reason = None
    if previous is None:
        reason = "the first of this root"
    elif corpus.rebuild_reason:
        reason = "all rows have new addresses"
    elif previous.space_id != vectors.units[0].unit.space_id:
        reason = "the vectors are of another space"
    choices: tuple[Choice, ...]
    if previous is None or reason is not None:
        index = build_index(run, vectors)
        choices = (Choice(what="index", chosen=rules.REBUILT, sentence=f"built from scratch: {reason}"),)
    else:
        index, choices = extend_index(run, vectors, previous)
    if near_dead := rules.near_dead(index.measured, run.job.gates.wanted_recall):
        choices = (*choices, near_dead)
    for choice in choices:
        say(f"index: {choice.sentence}")
    for sentence in rules.near_dead_warnings(choices):
        say(f"warning: {sentence}")
    plan = index.plan
    return index, (
        *choices,
        Choice(what="index kind", chosen=plan.kind, sentence=f"{plan.factory}: {plan.why}"),
    )
