"""Can a night run? Every check says what it found and, where that will not do, the remedy."""

import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.device import resolve
from pipeline.errors import ConfigError, PipelineError
from pipeline.flows.night.disk_space import check_room, needed
from pipeline.flows.night.stages import check_kind
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.probe import check_store
from pipeline.store.store import open_store
from pipeline.text.corpus.reader import CorpusSurvey, read_batches, survey_files
from pipeline.text.corpus.sources import SourceFile, list_files
from pipeline.text.tokens.coverage import CoverageCounter, ScriptCoverage

_SAMPLED_FILES, _SAMPLED_BATCHES = 4, 4
_SAMPLED_TEXTS = 256  # of one batch, tokenized


@dataclass(frozen=True)
class Check:
    """One answer. problem: None when all is well; warnings: what is no problem, and worth knowing; facts: its
    figures, for --json.
    """

    name: str
    found: str
    problem: str | None = None
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)


def preflight(job: Job, stages: Stages, *, verbose: bool = False) -> list[Check]:
    """All checks, in an order in which the first problem is likely the cause of later ones; without those
    that a problem before them makes pointless.
    """
    made: list[Check] = []
    failed: set[str] = set()
    for name, needs, look in _checks(job, stages, verbose):
        if failed.intersection(needs):
            continue
        try:
            made += [found if isinstance(found, Check) else Check(name, found) for found in look()]
        except PipelineError as error:
            made.append(Check(name, "", str(error)))
            failed.add(name)
    return made


Look = Callable[[], Iterator[str | Check]]


def _checks(job: Job, stages: Stages, verbose: bool) -> Iterator[tuple[str, tuple[str, ...], Look]]:
    """(name, checks whose problem is its problem too, what looks)."""
    yield "versions", (), _versions
    yield (
        "store",
        (),
        lambda: _store(open_store(job.release.root), needs_create=job.release.commits_root is None),
    )
    if job.release.commits_root is not None:
        yield "commits", (), lambda: _store(open_store(job.release.commits_root or ""), needs_create=True)
    yield "encoder", (), lambda: _encoder(job)
    yield "index", ("encoder",), lambda: _index(job)
    if job.corpus.harvest is None:
        sampled = Sampled(job)
        yield "corpus", (), lambda: _corpus(job, sampled)
        yield "tokens", ("encoder", "corpus"), lambda: _tokens(job, sampled)
        yield "space", ("store", "commits", "encoder", "index", "corpus"), lambda: _space(job, sampled)
    yield "cluster", (), lambda: _cluster(job, stages, verbose)


class Sampled:
    """The corpus's files, and rows from the beginnings of a few of them. Nothing is read before `files` is
    asked for.
    """

    def __init__(self, job: Job) -> None:
        self._corpus = job.corpus
        self.rows = self.good = self.distinct = self.line_bytes = 0
        self.texts: list[str] = []

    @cached_property
    def files(self) -> list[SourceFile]:
        return list_files(self._corpus)

    @cached_property
    def looked(self) -> CorpusSurvey:
        return survey_files(self.files, self._corpus)

    def read(self) -> None:
        """Count the sampled rows, and keep some of their texts."""
        usable = [file for file in self.files if file.name not in self.looked.refused]
        for file in usable[:: max(1, len(usable) // _SAMPLED_FILES)][:_SAMPLED_FILES]:
            rows = position = 0
            for batch in islice(read_batches(file, self._corpus, self.looked.columns), _SAMPLED_BATCHES):
                rows, position = rows + batch.rows, batch.position
                self.good += batch.good.num_rows
                self.distinct += pc.count_distinct(batch.good["id"]).as_py()
                step = max(1, batch.good.num_rows // _SAMPLED_TEXTS)
                self.texts += (
                    batch.good["text"].take(pa.array(range(0, batch.good.num_rows, step))).to_pylist()
                )
            self.rows += rows
            self.line_bytes = max(self.line_bytes, position // max(rows, 1))

    def rows_of(self, file: SourceFile) -> int:
        """Rows of a file: by its footer, else by the sample."""
        known = self.looked.rows.get(file.name)
        return file.size // max(self.line_bytes, 1) if known is None else known


def _versions() -> Iterator[str]:
    both = [name for name in ("faiss-cpu", "faiss-gpu") if _version(name)]
    if len(both) != 1:
        remedy = "pip uninstall both, then install one of the extras cpu, gpu or local"
        raise ConfigError(
            "packages", "faiss-cpu or faiss-gpu, one of them", " and ".join(both) or "neither", remedy
        )
    python = ".".join(map(str, sys.version_info[:3]))
    yield f"Python {python}, " + ", ".join(
        f"{name} {_version(name)}" for name in ("ray", "torch", "pyarrow", both[0])
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _store(store: Store, *, needs_create: bool) -> Iterator[str]:
    check_store(store, creates_once=needs_create)
    yield f"{store.uri}: write, {'create once, ' if needs_create else ''}delete"


def _encoder(job: Job) -> Iterator[str]:
    from pipeline.models.inference.encoder import load_encoder

    encoder = load_encoder(job.encoder, job.encode, resolve(job.encode.device))
    encoder.check()
    of_words = encoder.folder.family == "words"
    what = (
        f"{job.encoder.path}: {encoder.folder.config['vocab_size']:,} words"
        if of_words
        else str(encoder.folder.path)
    )
    yield f"{what}: {encoder.dim} dimensions, {encoder.max_length} tokens, space {encoder.space_id[:16]}"


def _index(job: Job) -> Iterator[str]:
    check_kind(job)
    yield f"{job.index.kind}: can be made of this encoder's vectors"


def _corpus(job: Job, sampled: Sampled) -> Iterator[str]:
    sampled.read()
    rows, good, refused = sampled.rows, sampled.good, len(sampled.looked.refused)
    if not good:
        raise ConfigError(
            job.corpus.uri,
            "rows with an id and a text",
            f"none among the first {rows}",
            "check corpus.id and corpus.text",
        )
    repeated = good - sampled.distinct
    ids = f"{repeated:,} repeated ids (the first of each is kept)" if repeated else "ids unique"
    unusable = f", {refused} unusable files" if refused else ""
    yield (
        f"{len(sampled.files)} files{unusable}; of {rows:,} sampled rows {rows - good:,} would be "
        f"quarantined, {ids}"
    )


def _tokens(job: Job, sampled: Sampled) -> Iterator[Check]:
    """Check that the tokenizer knows the texts and that the encoder's limit leaves enough of them."""
    tokenizer, tally = open_folder(job.encoder).tokenizer(), CoverageCounter()
    tally.add(pa.array(sampled.texts, pa.large_string()), tokenizer.counts(tokenizer(sampled.texts)))
    covered = ScriptCoverage.of(tally.counts())
    found = f"{covered.total.rows:,} sampled texts: {covered.total.sentence}"
    unknown, lost = _unknown_problem(job, covered), _lost_problem(job, covered)
    warnings = tuple(covered.warnings(unknown=unknown is None, lost=lost is None))
    problems = [problem for problem in (unknown, lost) if problem is not None]
    yield Check("tokens", found, "; ".join(problems) or None, warnings, covered.facts())


def _unknown_problem(job: Job, covered: ScriptCoverage) -> str | None:
    limit = job.gates.unknown_tokens
    if limit is None or covered.unknown_share <= limit:
        return None
    return (
        f"{job.encoder.path}: expected at most {limit:.0%} unknown tokens (gates.unknown_tokens), found "
        f"{covered.unknown_share:.1%} in {covered.total.rows:,} sampled texts "
        f"({covered.most_unknown_scripts()}): use an encoder that knows the language, or raise the bound"
    )


def _lost_problem(job: Job, covered: ScriptCoverage) -> str | None:
    limit = job.gates.lost_tokens
    if limit is None or covered.lost_share <= limit:
        return None
    return (
        f"{job.encoder.path}: expected at most {limit:.0%} lost tokens (gates.lost_tokens), "
        f"found {covered.lost_share:.1%} in {covered.total.rows:,} sampled texts "
        f"({covered.most_lost_scripts()}): split them, raise encoder.max_length where the encoder takes "
        "more, or raise the bound"
    )


def _space(job: Job, sampled: Sampled) -> Iterator[str]:
    """Room for what a night writes, and for what it needs meanwhile."""
    store = open_store(job.release.root)
    yield check_room(
        needed(job, store, {file: sampled.rows_of(file) for file in sampled.files}), store, job.release.root
    )


def _cluster(job: Job, stages: Stages, verbose: bool) -> Iterator[str]:
    from pipeline.flows.workers.cluster import connect

    with connect(job.cluster, stages, verbose=verbose) as workers:
        size = workers.pool(job.cluster, 1_000_000).size
        yield f"{workers.cpus} CPUs, {workers.gpus} GPUs: {size} encode workers"
