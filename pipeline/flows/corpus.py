"""The corpus of a command: filled if the job asks for it, sampled, and read into units."""

from collections.abc import Iterator, Sequence
from itertools import islice

from pipeline.log import Stages, counted
from pipeline.settings import CorpusSettings, Job
from pipeline.store.base import Store
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from pipeline.store.units import Corpus
from pipeline.text.corpus.docstrings import harvest_docstrings
from pipeline.text.corpus.ingest import ParentCorpus, ingest
from pipeline.text.corpus.reader import CorpusSurvey, read_batches
from pipeline.text.corpus.sift import SourceBatch
from pipeline.text.corpus.sources import SourceFile


def open_releases(job: Job) -> Releases:
    """Open the releases below release.root, with their commits at release.commits_root."""
    root, commits = job.release.root, job.release.commits_root
    return Releases(open_store(root), open_store(commits) if commits else None)


def fill_corpus(job: Job, stages: Stages) -> None:
    """Write a harvested corpus to corpus.uri if the job asks for it. Equal content is not written again."""
    if job.corpus.harvest == "docstrings":
        with stages("harvest") as bar:
            bar.add(harvest_docstrings(job.corpus.uri, job.corpus.max_rows))


def sample_files(
    files: Sequence[SourceFile], survey: CorpusSurvey, corpus: CorpusSettings, most: int, batches: int
) -> list[Iterator[SourceBatch]]:
    """Open up to `most` usable files spread over the corpus. Returns the first batches of each."""
    usable = [file for file in files if file.name not in survey.refused]
    chosen = usable[:: max(1, len(usable) // most)][:most]
    return [islice(read_batches(file, corpus, survey.columns), batches) for file in chosen]


def read_corpus(
    settings: CorpusSettings, unit_rows: int, store: Store, parent: ParentCorpus, stages: Stages
) -> Corpus:
    """Read the corpus into units that continue those of `parent`, as a stage of its own."""
    with stages("ingest") as bar:
        corpus = ingest(settings, unit_rows, store, parent, on_progress=lambda rows, _: bar.reach(rows))
        rows, quarantined = counted(corpus.rows, "live row"), f"{corpus.counts['quarantined']:,} quarantined"
        bar.stage.note = f"{rows} in {counted(len(corpus.units), 'unit')}, {quarantined}"
    return corpus
