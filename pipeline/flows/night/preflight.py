"""Checks that a night can run. Each says what it found, and the remedy if a night cannot run with it."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.device import resolve
from pipeline.errors import ConfigError, PipelineError
from pipeline.flows.corpus import sample_files
from pipeline.flows.night.disk_space import check_room, needed
from pipeline.flows.night.stages import check_kind
from pipeline.log import Stages, counted, packages
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
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


def preflight(job: Job, stages: Stages, *, verbose: bool = False) -> list[Check]:
    """Run all checks; the first problem is likely the cause of later ones.

    Checks that a problem before them makes pointless are left out.
    """
    made, failed = list[Check](), set[str]()
    for name, needs, check in _Checks(job, stages, verbose).all():
        if failed.intersection(needs):
            continue
        try:
            found = check()
            made.append(found if isinstance(found, Check) else Check(name, found))
        except PipelineError as error:
            made.append(Check(name, "", str(error)))
            failed.add(name)
    return made


class _Checks:
    """All checks of a job. The corpus is sampled by one of them, for those after it."""

    files: Sequence[SourceFile] = ()
    survey: CorpusSurvey

    def __init__(self, job: Job, stages: Stages, verbose: bool) -> None:
        self.job, self.stages, self.verbose = job, stages, verbose
        self.texts, self.line_bytes = list[str](), 1

    def all(self) -> Iterator[tuple[str, tuple[str, ...], Callable[[], str | Check]]]:
        """Yield (name, checks without whose success it is pointless, function) of every check."""
        root, commits_root = self.job.release.root, self.job.release.commits_root
        yield "versions", (), self.versions
        yield "store", (), lambda: self.store(root, needs_create=commits_root is None)
        if commits_root is not None:
            yield "commits", (), lambda: self.store(commits_root, needs_create=True)
        yield "encoder", (), self.encoder
        yield "index", ("encoder",), self.index
        if self.job.corpus.harvest is None:
            yield "corpus", (), self.corpus
            yield "tokens", ("encoder", "corpus"), self.tokens
            yield "space", ("store", "commits", "encoder", "index", "corpus"), self.space
        yield "cluster", (), self.cluster

    def versions(self) -> str:
        """Check that exactly one faiss is installed."""
        both = packages("faiss-cpu", "faiss-gpu")
        if len(both) != 1:
            raise ConfigError(
                "packages",
                "faiss-cpu or faiss-gpu, one of them",
                " and ".join(both) or "neither",
                "pip uninstall both, then install one of the extras cpu, gpu or local",
            )
        versions = packages("ray", "torch", "pyarrow", *both).items()
        return ", ".join([f"Python {platform.python_version()}", *map(" ".join, versions)])

    def store(self, uri: str, *, needs_create: bool) -> str:
        """Check that files can be written, created once, and deleted."""
        store = open_store(uri)
        check_store(store, creates_once=needs_create)
        return f"{store.uri}: write, {'create once, ' if needs_create else ''}delete"

    def encoder(self) -> str:
        """Check that the encoder loads and encodes."""
        from pipeline.models.inference.encoder import load_encoder

        encoder = load_encoder(self.job.encoder, self.job.encode, resolve(self.job.encode.device))
        encoder.check()
        folder, name = encoder.folder, str(encoder.folder.path)
        if folder.family == "words":
            name = f"{self.job.encoder.path}: {folder.config['vocab_size']:,} words"
        return f"{name}: {encoder.dim} dimensions, {encoder.max_length} tokens, space {encoder.space_id[:16]}"

    def index(self) -> str:
        """Check that the index can be made of the encoder's vectors."""
        check_kind(self.job)
        return f"{self.job.index.kind}: can be made of this encoder's vectors"

    def corpus(self) -> str:
        """Sample rows of a few files, check their columns and ids, and keep some of their texts."""
        corpus, rows, good, distinct = self.job.corpus, 0, 0, 0
        self.files = list_files(corpus)
        self.survey = survey_files(self.files, corpus)
        for batches in sample_files(self.files, self.survey, corpus, _SAMPLED_FILES, _SAMPLED_BATCHES):
            of_file = position = 0
            for batch in batches:
                of_file, position = of_file + batch.rows, batch.position
                good += batch.good.num_rows
                distinct += pc.count_distinct(batch.good["id"]).as_py()
                self.texts += batch.good["text"].to_pylist()[:: max(1, batch.good.num_rows // _SAMPLED_TEXTS)]
            self.line_bytes = max(self.line_bytes, position // max(of_file, 1))
            rows += of_file
        if not good:
            raise ConfigError(
                corpus.uri,
                "rows with an id and a text",
                f"none among the first {rows}",
                "check corpus.id and corpus.text",
            )
        repeated, refused = good - distinct, len(self.survey.refused)
        ids = f"{counted(repeated, 'repeated id')} (the first of each is kept)" if repeated else "ids unique"
        files = counted(len(self.files), "file") + (
            f", {counted(refused, 'unusable file')}" if refused else ""
        )
        return f"{files}; of {counted(rows, 'sampled row')} {rows - good:,} would be quarantined, {ids}"

    def tokens(self) -> Check:
        """Check that the tokenizer knows the texts, and that the encoder's limit leaves enough of them."""
        tokenizer, counter = open_folder(self.job.encoder).tokenizer(), CoverageCounter()
        counter.add(pa.array(self.texts, pa.large_string()), tokenizer.counts(tokenizer(self.texts)))
        covered, gates, path = ScriptCoverage.of(counter.counts()), self.job.gates, self.job.encoder.path
        texts, problems = f"{covered.total.rows:,} sampled texts", []
        unknown = gates.unknown_tokens is not None and covered.unknown_share > gates.unknown_tokens
        lost = gates.lost_tokens is not None and covered.lost_share > gates.lost_tokens
        if unknown:
            found = f"{covered.unknown_share:.1%} in {texts} ({covered.most_unknown_scripts()})"
            problems.append(
                f"{path}: expected at most {gates.unknown_tokens:.0%} unknown tokens (gates.unknown_tokens), "
                f"found {found}: use an encoder that knows the language, or raise the bound"
            )
        if lost:
            found = f"{covered.lost_share:.1%} in {texts} ({covered.most_lost_scripts()})"
            problems.append(
                f"{path}: expected at most {gates.lost_tokens:.0%} lost tokens (gates.lost_tokens), found "
                f"{found}: split them, raise encoder.max_length where the encoder takes more, or raise the "
                "bound"
            )
        return Check(
            "tokens",
            f"{texts}: {covered.total.sentence}",
            "; ".join(problems) or None,
            tuple(covered.warnings(unknown=not unknown, lost=not lost)),
            covered.facts(),
        )

    def space(self) -> str:
        """Check the disk space for a night's files, and for its temporary files."""
        store, root, known = open_store(self.job.release.root), self.job.release.root, self.survey.rows
        guesses = {file: file.size // self.line_bytes for file in self.files if known.get(file.name) is None}
        counts = {file: guesses.get(file, known.get(file.name) or 0) for file in self.files}
        return check_room(needed(self.job, store, counts), store, root)

    def cluster(self) -> str:
        """Check that workers can be started."""
        from pipeline.flows.workers.cluster import connect

        with connect(self.job.cluster, self.stages, verbose=self.verbose) as workers:
            size = workers.pool(self.job.cluster, 1_000_000).size
            return f"{workers.cpus} CPUs, {workers.gpus} GPUs: {size} encode workers"
