"""Check before a night whether it can run, for `manta preflight`.

Each check reports its findings, or an error with its remedy.
"""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from pipeline.device import resolve
from pipeline.errors import ConfigError, PipelineError
from pipeline.evaluate.judgements import read_relevance
from pipeline.flows.corpus import corpus_of, open_releases, sample_files
from pipeline.flows.encode.encoder_copy import encoder_copy_path, encoder_for_workers
from pipeline.flows.night.gates.corpus_language import foreign_warnings
from pipeline.flows.night.gates.judged_ids import check_judged_ids_in_files
from pipeline.flows.night.guess_corpus import guess_language, no_language
from pipeline.flows.night.previous_release import changed_files, load_previous
from pipeline.flows.night.steps import check_index_and_transform, check_root
from pipeline.flows.night.user_queries import read_user_queries
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.nodes import describe_resources
from pipeline.flows.workers.tasks import Pool
from pipeline.index.build.index_shape import plan_index
from pipeline.index.build.sample import LEAST_SAMPLED_ROWS, SAMPLE_SIZES
from pipeline.log import Stages, counted, packages, size
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings, Job
from pipeline.store.files.base import Store
from pipeline.store.files.check_store import check_store
from pipeline.store.files.disk import temporary_files
from pipeline.store.files.local import LocalStore
from pipeline.store.files.open_store import open_store
from pipeline.text.formats.reader import CorpusSurvey, survey_files
from pipeline.text.ingest.chunking import row_cutter
from pipeline.text.key_tables.keys import id_hashes
from pipeline.text.sources.sources import SourceFile, list_corpus
from pipeline.text.tokens.coverage import CoverageCounter, ScriptCoverage

# bytes of one row in the key tables and in the files of ids: id, text key, address, file, row
_TABLE_BYTES = 120
_REPORT_BYTES = 1 << 20  # bytes of report, manifests and records, which do not grow with the rows
_LINE_BYTES = 100  # bytes of one row in the temporary files of ingestion, without its text


@dataclass(frozen=True)
class SpaceEstimate:
    """Estimate of the bytes that a night needs."""

    stored: Mapping[str, int]
    """bytes written below release.root, by purpose"""
    scratch: int
    """largest total size of temporary files at one time, in bytes"""

    @property
    def sentence(self) -> str:
        """The sizes of all purposes that need space."""
        parts = {**self.stored, "scratch": self.scratch}
        return ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count)


def estimate_space(job: Job, store: Store, files: Mapping[SourceFile, int]) -> SpaceEstimate:
    """Estimate the space that a night needs.

    Files of the previous release are on the disk already, and stay there. On the first night of a root, the
    index counts twice, because the second night needs space for its own index beside the first one.

    Args:
        store: store of the results.
        files: number of rows of each input file.
    """
    folder, previous = open_folder(job.encoder), load_previous(open_releases(job))
    release = previous.release
    same_space = release is not None and release.space_id == folder.space_id
    new_files = changed_files(files, previous.corpus if same_space else None)
    max_rows = job.corpus.max_rows or sum(files.values())
    all_rows = min(sum(files.values()), max_rows)
    new_rows = min(sum(files[file] for file in new_files), max_rows)
    new_bytes = sum(file.size for file in new_files)
    vector_bytes = folder.dim * (2 if job.encode.vectors == "float16" else 4)
    new_units = -(-new_rows // job.encode.unit_rows)
    moments_bytes = new_units * folder.dim * (folder.dim + 1) * 4  # a triangle of a float64 matrix per unit
    # units with fewer than LEAST_SAMPLED_ROWS rows have no sample
    sampled_units = new_rows // max(job.encode.unit_rows, LEAST_SAMPLED_ROWS)
    sample_bytes = sampled_units * sum(SAMPLE_SIZES.values()) * vector_bytes
    index = plan_index(max(all_rows, 1), folder.dim, job.index, target=job.gates.wanted_recall)
    indexes = {"index": index.file_bytes} if release else {"two indexes": 2 * index.file_bytes}
    copy = encoder_copy_path(folder)
    encoder_files = {f"{copy}/{name}": folder.file(name).stat().st_size for name in folder.files}
    kept_columns = new_bytes if job.corpus.keep else 0  # not more than the size of the files they come from
    stored = {
        "vectors": new_rows * vector_bytes + moments_bytes + sample_bytes,
        "texts": new_bytes,
        "tables": all_rows * _TABLE_BYTES + kept_columns,
        **indexes,
        "report and samples": _REPORT_BYTES + 2 * job.index.queries * folder.dim * 4,
        "encoder": sum(count for path, count in encoder_files.items() if store.size(path) != count),
    }
    return SpaceEstimate(stored, max(new_bytes + new_rows * _LINE_BYTES, index.file_bytes))


def check_disk_space(estimate: SpaceEstimate, store: Store, root: str) -> str:
    """Return a sentence on the free and the needed space.

    Raises:
        ConfigError: the disk of `root`, or the disk of temporary files, has too little free space.
    """
    stored, free = sum(estimate.stored.values()), store.free_bytes()
    if free is not None:
        needed = stored + estimate.scratch
        if free < needed:
            remedy = "make room (manta releases prune), or choose another release.root"
            raise ConfigError(root, _needed(needed, estimate), size(free), remedy)
        return f"{size(free)} free, about {size(needed)} needed: {estimate.sentence}"
    folder = temporary_files()
    free = LocalStore(folder).free_bytes() or 0
    if free < estimate.scratch:
        remedy = "make room there, or set TMPDIR to a larger disk"
        raise ConfigError(folder, _needed(estimate.scratch, estimate), size(free), remedy)
    return (
        f"an object store: no limit known, about {size(stored)} needed; {size(free)} free for scratch in "
        f"{folder}: {estimate.sentence}"
    )


def _needed(count: int, estimate: SpaceEstimate) -> str:
    return f"about {size(count)} free ({estimate.sentence})"


_NODES_S = 180.0  # time in which nodes must answer; each may have to copy the encoder first
_SAMPLED_FILES, _SAMPLED_BATCHES = 4, 4
_SAMPLED_TEXTS = 256  # texts of one batch that are tokenized
# For each check, the checks that must succeed before it is run.
_NEEDED_CHECKS = {
    "index": ("encoder",),
    "tokens": ("encoder", "corpus"),
    "nodes": ("store", "encoder"),
    "space": ("store", "commits", "encoder", "index", "corpus"),
}


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    """name of the check"""
    found: str
    """description of the findings"""
    problem: str | None = None
    """error with its remedy; None if a night can run"""
    warnings: tuple[str, ...] = ()
    """sentences about findings that do not stop a night"""
    facts: Mapping[str, object] = field(default_factory=dict)
    """metrics for --json"""
    table: tuple[tuple[str, ...], ...] = ()
    """rows of a table of findings, its header first; empty without one"""


def preflight(job: Job, stages: Stages, *, verbose: bool = False) -> list[Check]:
    """Run all checks, except those that depend on a check that failed."""
    checks, failed = list[Check](), set[str]()
    with ExitStack() as connections:
        for name, check in _Checks(job, stages, verbose, connections).all():
            if failed.intersection(_NEEDED_CHECKS.get(name, ())):
                continue
            try:
                found = check()
                checks.append(found if isinstance(found, Check) else Check(name, found))
            except PipelineError as error:
                checks.append(Check(name, "", str(error)))
                failed.add(name)
    return checks


class _Checks:
    """All checks of a job. Later ones use rows that "corpus" samples, and workers that "cluster" connects."""

    files: Sequence[SourceFile] = ()
    survey: CorpusSurvey
    workers: Workers | None = None

    def __init__(self, job: Job, stages: Stages, verbose: bool, connections: ExitStack) -> None:
        self.job, self.stages, self.verbose, self.connections = job, stages, verbose, connections
        self.texts = list[str]()
        self.texts_per_row = 1.0  # above 1 if rows are cut into chunks
        self.row_bytes = 1  # the largest mean size of a row in a sampled file

    def all(self) -> Iterator[tuple[str, Callable[[], str | Check]]]:
        """Yield (name, function) of every check."""
        root, commits_root = self.job.release.root, self.job.release.commits_root
        yield "versions", self.versions
        yield "store", lambda: self.store(root, needs_create=commits_root is None)
        if commits_root is not None:
            yield "commits", lambda: self.store(commits_root, needs_create=True)
        yield "encoder", self.encoder
        yield "index", self.index
        if self.job.corpus.harvest is None:
            yield "corpus", self.corpus
            yield "tokens", self.tokens
            yield "space", self.space
        if self.job.gates.queries is not None or self.job.gates.relevance.queries is not None:
            yield "queries", self.queries
        yield "cluster", self.cluster
        if self.workers is not None and not self.workers.shares_disk:
            yield "nodes", partial(self.nodes, self.workers)

    def versions(self) -> str:
        """Check that exactly one faiss is installed."""
        installed = packages("faiss-cpu", "faiss-gpu")
        if len(installed) != 1:
            raise ConfigError(
                "packages",
                "faiss-cpu or faiss-gpu, one of them",
                " and ".join(installed) or "neither",
                "pip uninstall both, then install one of the extras cpu, gpu or local",
            )
        versions = packages("ray", "torch", "pyarrow", *installed).items()
        return ", ".join([f"Python {platform.python_version()}", *map(" ".join, versions)])

    def store(self, uri: str, *, needs_create: bool) -> str:
        """Check that files can be written, created once, and deleted."""
        store = open_store(uri)
        check_store(store, creates_once=needs_create)
        return f"{store.uri}: write, {'create once, ' if needs_create else ''}delete"

    def encoder(self) -> Check:
        """Check that the encoder loads and encodes."""
        from pipeline.models.inference.encoder import Encoder

        folder = open_folder(self.job.encoder)
        encoder = Encoder(folder, self.job.encode, resolve(self.job.encode.device))
        encoder.check()
        name = str(folder.path)
        if folder.family == "words":
            name = f"{self.job.encoder.path}: {folder.config['vocab_size']:,} words"
        found = (
            f"{name}: {encoder.dim} dimensions, {encoder.max_length} tokens, space {encoder.space_id[:16]}"
        )
        return Check("encoder", found, warnings=folder.warnings)

    def index(self) -> str:
        """Check that the index can be made of the encoder's vectors."""
        check_index_and_transform(self.job)
        return f"{self.job.index.kind}: can be made of this encoder's vectors"

    def corpus(self) -> Check:
        """Sample rows of a few files, and check their columns and ids. Later checks use some of the texts."""
        check_root(self.job)
        corpus = corpus_of(self.job)
        rows, drawn_rows, cut_rows, hash_batches = 0, 0, row_cutter(corpus), [np.zeros(0, np.uint64)]
        filtered = 0
        listed = list_corpus(corpus)
        self.files = listed.files
        self.survey = survey_files(self.files, corpus)
        for batches in sample_files(self.files, self.survey, corpus, _SAMPLED_FILES, _SAMPLED_BATCHES):
            file_rows = read_bytes = 0
            for batch in batches:
                file_rows += batch.rows
                filtered += batch.filtered.num_rows
                read_bytes = batch.position
                hash_batches.append(id_hashes(batch.good))  # 8 bytes a row, whatever the ids' lengths
                drawn = _draw_rows(batch.good)
                drawn_rows += drawn.num_rows
                self.texts += cut_rows(drawn)["text"].to_pylist()
            self.row_bytes = max(self.row_bytes, read_bytes // max(file_rows, 1))
            rows += file_rows
        self.texts_per_row = len(self.texts) / max(drawn_rows, 1)
        hashes = np.concatenate(hash_batches)
        valid = len(hashes)
        repeated = valid - len(np.unique(hashes))
        if not valid:
            raise ConfigError(
                corpus.uri,
                "rows with an id and a text",
                f"none among the first {rows}" + (f", {filtered} of them filtered" if filtered else ""),
                "check corpus.id, corpus.text, corpus.where and corpus.exclude",
            )
        unique = "ids unique"
        if repeated:
            unique = f"{counted(repeated, 'repeated id')} (the first of each is kept)"
        files = counted(len(self.files), "file")
        if refused := len(self.survey.refused):
            files += f", {counted(refused, 'unusable file')}"
        bad, left_out = rows - valid - filtered, f" and {filtered:,} filtered" if filtered else ""
        found = f"{files}; of {counted(rows, 'sampled row')} {bad:,} would be quarantined{left_out}, {unique}"
        return Check("corpus", found, warnings=(listed.warning,) if listed.warning else ())

    def tokens(self) -> Check:
        """Check that the tokenizer knows the texts, and that the encoder's limit cuts off few tokens."""
        tokenizer, counter = open_folder(self.job.encoder).tokenizer(), CoverageCounter()
        counter.add(pa.array(self.texts, pa.large_string()), tokenizer.counts(tokenizer(self.texts)))
        covered, gates, path = ScriptCoverage.of(counter.counts()), self.job.gates, self.job.encoder.path
        texts = f"{covered.total.rows:,} sampled texts"
        problems: list[str] = []
        too_many_unknown = (
            gates.unknown_tokens is not None and covered.unknown_proportion > gates.unknown_tokens
        )
        too_many_lost = gates.lost_tokens is not None and covered.lost_proportion > gates.lost_tokens
        if too_many_unknown:
            found = f"{covered.unknown_proportion:.1%} in {texts} ({covered.most_unknown_scripts()})"
            problems.append(
                f"{path}: expected at most {gates.unknown_tokens:.0%} unknown tokens (gates.unknown_tokens), "
                f"found {found}: use an encoder that knows the language, or raise the bound"
            )
        if too_many_lost:
            found = f"{covered.lost_proportion:.1%} in {texts} ({covered.most_lost_scripts()})"
            problems.append(
                f"{path}: expected at most {gates.lost_tokens:.0%} lost tokens (gates.lost_tokens), found "
                f"{found}: cut them into chunks (corpus.chunk.by), raise encoder.max_length where the "
                "encoder takes more, or raise the bound"
            )
        language, default = guess_language(self.texts), EncoderSettings().path
        foreign = foreign_warnings(language) if path == default else ()
        return Check(
            "tokens",
            f"{texts}: {covered.total.sentence}, language {language or no_language()}",
            "; ".join(problems) or None,
            (*covered.warnings(unknown=not too_many_unknown, lost=not too_many_lost), *foreign),
            covered.facts() | {"language": language},
        )

    def space(self) -> str:
        """Check the disk space for a night's files, and for its temporary files."""
        root, known = self.job.release.root, self.survey.rows
        store, counts = open_store(root), dict[SourceFile, int]()
        for file in self.files:
            count = known.get(file.name)
            rows = file.size // self.row_bytes if count is None else count
            counts[file] = round(rows * self.texts_per_row)
        corpus = self.job.corpus
        if corpus.max_rows is not None:
            corpus = corpus.model_copy(update={"max_rows": round(corpus.max_rows * self.texts_per_row)})
        job = self.job.model_copy(update={"corpus": corpus})
        return check_disk_space(estimate_space(job, store, counts), store, root)

    def queries(self) -> str:
        """Check that the files of gates.queries and gates.relevance can be read and fit the corpus."""
        found = list[str]()
        if self.job.gates.queries is not None:
            queries = read_user_queries(self.job.gates, open_folder(self.job.encoder))
            found.append(f"gates.queries: {len(queries or ()):,} queries")
        if self.job.gates.relevance.queries is not None:
            found.append(f"gates.relevance: {read_relevance(self.job.gates.relevance).count}")
            if self.files:
                check_judged_ids_in_files(self.job.gates, corpus_of(self.job), self.files)
        return "; ".join(found)

    def cluster(self) -> str:
        """Check that workers can be started."""
        from pipeline.flows.workers.cluster import connect

        connected = connect(self.job.cluster, self.stages, verbose=self.verbose)
        self.workers = workers = self.connections.enter_context(connected)
        size = workers.pool(self.job.cluster, 1_000_000).size
        return f"{describe_resources(workers.cpus, workers.gpus)}: {counted(size, 'encode worker')}"

    def nodes(self, workers: Workers) -> Check:
        """Ask every node whether it can do the work, and let those with room for a worker encode a buffer."""
        from pipeline.flows.workers import check_nodes

        job = self.job
        stores = {"release.root": open_store(job.release.root)}
        if job.train.data:
            stores["train.root"] = open_store(job.train.root)
        encoder = encoder_for_workers(job.encoder, stores["release.root"], workers)
        with self.stages("nodes"), check_nodes.probe_in(stores) as probe:
            check = check_nodes.NodeCheck(stores, probe, encoder, workers.encode_settings(job.encode))
            demand = Pool.of_one(job.cluster).demand
            answers = check_nodes.ask_nodes(check, _NODES_S, demand=demand)
        return Check(
            "nodes",
            counted(len(answers), "node"),
            "; ".join(map(str, check_nodes.find_problems(answers))) or None,
            tuple(check_nodes.find_warnings(answers, _NODES_S)),
            {"nodes": [check_nodes.describe(each) for each in answers]},
            check_nodes.as_table(answers),
        )


def _draw_rows(rows: pa.Table) -> pa.Table:
    """Draw at most 256 rows at random, not every k-th: rows of a file may alternate between languages."""
    chosen = np.random.default_rng(0).permutation(len(rows))[:_SAMPLED_TEXTS]
    return rows.take(pa.array(np.sort(chosen)))
