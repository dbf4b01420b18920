"""Checks that a night can run. Each says what it found, and the remedy if a night cannot run with it."""

import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.device import resolve
from pipeline.errors import ConfigError, PipelineError
from pipeline.flows.corpus import sample_files
from pipeline.flows.night.disk_space import check_room, needed
from pipeline.flows.night.stages import check_kind
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.probe import check_store
from pipeline.store.store import open_store
from pipeline.text.corpus.reader import CorpusSurvey, survey_files
from pipeline.text.corpus.sources import SourceFile, list_files
from pipeline.text.tokens.coverage import CoverageCounter, ScriptCoverage

_SAMPLED_FILES, _SAMPLED_BATCHES = 4, 4
_SAMPLED_TEXTS = 256  # of one batch, tokenized


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: of the check.
        found: description of the findings.
        problem: error with its remedy; None if a night can run.
        warnings: about findings that do not stop a night.
        facts: metrics for --json.
    """

    name: str
    found: str
    problem: str | None = None
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)


Look = Callable[[], str | Check]


def preflight(job: Job, stages: Stages, *, verbose: bool = False) -> list[Check]:
    """Run all checks; the first problem is likely the cause of later ones.

    Checks that a problem before them makes pointless are left out.
    """
    made: list[Check] = []
    failed: set[str] = set()
    for name, needs, look in _checks(job, stages, verbose):
        if failed.intersection(needs):
            continue
        try:
            found = look()
            made.append(found if isinstance(found, Check) else Check(name, found))
        except PipelineError as error:
            made.append(Check(name, "", str(error)))
            failed.add(name)
    return made


def _checks(job: Job, stages: Stages, verbose: bool) -> Iterator[tuple[str, tuple[str, ...], Look]]:
    """Yield (name, checks without whose success it is pointless, function) of every check."""
    root, commits_root = job.release.root, job.release.commits_root
    yield "versions", (), _versions
    yield "store", (), lambda: _store(open_store(root), needs_create=commits_root is None)
    if commits_root is not None:
        yield "commits", (), lambda: _store(open_store(commits_root), needs_create=True)
    yield "encoder", (), lambda: _encoder(job)
    yield "index", ("encoder",), lambda: _index(job)
    if job.corpus.harvest is None:
        sampled = _Sampled(job)
        yield "corpus", (), lambda: _corpus(job, sampled)
        yield "tokens", ("encoder", "corpus"), lambda: _tokens(job, sampled)
        yield "space", ("store", "commits", "encoder", "index", "corpus"), lambda: _space(job, sampled)
    yield "cluster", (), lambda: _cluster(job, stages, verbose)


class _Sampled:
    """The corpus's files, and counts and texts from the beginnings of a few of them; empty before `read`."""

    files: list[SourceFile]
    survey: CorpusSurvey

    def __init__(self, job: Job) -> None:
        self._corpus = job.corpus
        self.rows = self.good = self.distinct = self.line_bytes = 0
        self.texts: list[str] = []

    def read(self) -> None:
        """List the files, count the sampled rows, and keep some of their texts."""
        self.files = list_files(self._corpus)
        self.survey = survey_files(self.files, self._corpus)
        for batches in sample_files(self.files, self.survey, self._corpus, _SAMPLED_FILES, _SAMPLED_BATCHES):
            rows = position = 0
            for batch in batches:
                rows, position, good = rows + batch.rows, batch.position, batch.good
                self.good += good.num_rows
                self.distinct += pc.count_distinct(good["id"]).as_py()
                self.texts += good["text"].to_pylist()[:: max(1, good.num_rows // _SAMPLED_TEXTS)]
            self.rows += rows
            self.line_bytes = max(self.line_bytes, position // max(rows, 1))

    def rows_of(self, file: SourceFile) -> int:
        """Return the rows of a file: by its footer, else by the sample."""
        known = self.survey.rows.get(file.name)
        return file.size // max(self.line_bytes, 1) if known is None else known


def _versions() -> str:
    both = [name for name in ("faiss-cpu", "faiss-gpu") if _version(name)]
    if len(both) != 1:
        remedy = "pip uninstall both, then install one of the extras cpu, gpu or local"
        raise ConfigError(
            "packages", "faiss-cpu or faiss-gpu, one of them", " and ".join(both) or "neither", remedy
        )
    python = ".".join(map(str, sys.version_info[:3]))
    versions = (f"{name} {_version(name)}" for name in ("ray", "torch", "pyarrow", both[0]))
    return f"Python {python}, {', '.join(versions)}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _store(store: Store, *, needs_create: bool) -> str:
    check_store(store, creates_once=needs_create)
    return f"{store.uri}: write, {'create once, ' if needs_create else ''}delete"


def _encoder(job: Job) -> str:
    from pipeline.models.inference.encoder import load_encoder

    encoder = load_encoder(job.encoder, job.encode, resolve(job.encode.device))
    encoder.check()
    folder, name = encoder.folder, str(encoder.folder.path)
    if folder.family == "words":
        name = f"{job.encoder.path}: {folder.config['vocab_size']:,} words"
    return f"{name}: {encoder.dim} dimensions, {encoder.max_length} tokens, space {encoder.space_id[:16]}"


def _index(job: Job) -> str:
    check_kind(job)
    return f"{job.index.kind}: can be made of this encoder's vectors"


def _corpus(job: Job, sampled: _Sampled) -> str:
    sampled.read()
    rows, good, refused = sampled.rows, sampled.good, len(sampled.survey.refused)
    if not good:
        found, remedy = f"none among the first {rows}", "check corpus.id and corpus.text"
        raise ConfigError(job.corpus.uri, "rows with an id and a text", found, remedy)
    repeated = good - sampled.distinct
    ids = f"{repeated:,} repeated ids (the first of each is kept)" if repeated else "ids unique"
    files = f"{len(sampled.files)} files" + (f", {refused} unusable files" if refused else "")
    return f"{files}; of {rows:,} sampled rows {rows - good:,} would be quarantined, {ids}"


def _tokens(job: Job, sampled: _Sampled) -> Check:
    """Check that the tokenizer knows the texts, and that the encoder's limit leaves enough of them."""
    tokenizer, counter = open_folder(job.encoder).tokenizer(), CoverageCounter()
    counter.add(pa.array(sampled.texts, pa.large_string()), tokenizer.counts(tokenizer(sampled.texts)))
    covered, gates = ScriptCoverage.of(counter.counts()), job.gates
    texts, problems = f"{covered.total.rows:,} sampled texts", []
    unknown = gates.unknown_tokens is not None and covered.unknown_share > gates.unknown_tokens
    lost = gates.lost_tokens is not None and covered.lost_share > gates.lost_tokens
    if unknown:
        found = f"{covered.unknown_share:.1%} in {texts} ({covered.most_unknown_scripts()})"
        problems.append(
            f"{job.encoder.path}: expected at most {gates.unknown_tokens:.0%} unknown tokens "
            f"(gates.unknown_tokens), found {found}: use an encoder that knows the language, or raise the bound"
        )
    if lost:
        found = f"{covered.lost_share:.1%} in {texts} ({covered.most_lost_scripts()})"
        problems.append(
            f"{job.encoder.path}: expected at most {gates.lost_tokens:.0%} lost tokens (gates.lost_tokens), "
            f"found {found}: split them, raise encoder.max_length where the encoder takes more, or raise the "
            "bound"
        )
    warnings = tuple(covered.warnings(unknown=not unknown, lost=not lost))
    sentence = f"{texts}: {covered.total.sentence}"
    return Check("tokens", sentence, "; ".join(problems) or None, warnings, covered.facts())


def _space(job: Job, sampled: _Sampled) -> str:
    """Check the disk space for a night's files, and for its temporary files."""
    store = open_store(job.release.root)
    room = needed(job, store, {file: sampled.rows_of(file) for file in sampled.files})
    return check_room(room, store, job.release.root)


def _cluster(job: Job, stages: Stages, verbose: bool) -> str:
    from pipeline.flows.workers.cluster import connect

    with connect(job.cluster, stages, verbose=verbose) as workers:
        size = workers.pool(job.cluster, 1_000_000).size
        return f"{workers.cpus} CPUs, {workers.gpus} GPUs: {size} encode workers"
