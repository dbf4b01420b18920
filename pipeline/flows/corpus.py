"""Open the releases of a job, and harvest, sample and read its corpus."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from pipeline.log import Stages, counted
from pipeline.settings import CorpusSettings, Job
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from pipeline.store.units import Corpus
from pipeline.text.corpus.docstrings import harvest_docstrings
from pipeline.text.corpus.reader import CorpusSurvey, read_batches
from pipeline.text.corpus.sift import SourceBatch
from pipeline.text.corpus.sources import SourceFile
from pipeline.text.corpus.task_map import OnProgress


def open_releases(job: Job) -> Releases:
    """Open the releases below release.root, with their commits at release.commits_root."""
    root, commits = job.release.root, job.release.commits_root
    return Releases(open_store(root), open_store(commits) if commits else None)


def harvest_corpus(job: Job, stages: Stages) -> None:
    """Write a harvested corpus to corpus.uri if corpus.harvest is set. Equal content is not written again."""
    if job.corpus.harvest == "docstrings":
        with stages("harvest") as bar:
            bar.add(harvest_docstrings(job.corpus.uri, job.corpus.max_rows))


def sample_files(
    files: Sequence[SourceFile], survey: CorpusSurvey, corpus: CorpusSettings, max_files: int, batches: int
) -> list[Iterator[SourceBatch]]:
    """Open at most `max_files` usable files, evenly spread over the corpus.

    Returns:
        For each file, an iterator over its first `batches` batches.
    """
    usable = [file for file in files if file.name not in survey.refused]
    chosen = usable[:: max(1, len(usable) // max_files)][:max_files]
    return [islice(read_batches(file, corpus, survey.columns), batches) for file in chosen]


def read_corpus(ingestion: Callable[[OnProgress], Corpus], stages: Stages) -> Corpus:
    """Run an ingestion as stage "ingest"; it reports its progress to the given function."""
    with stages("ingest") as bar:
        corpus = ingestion(lambda rows, _: bar.reach(rows))
        bar.stage.note = (
            f"{counted(corpus.rows, 'live row')} in {counted(len(corpus.units), 'unit')}, "
            f"{corpus.counts['quarantined']:,} quarantined"
        )
    return corpus
