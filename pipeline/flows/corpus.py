"""The corpus of a command: filled where the job asks for it, and read into units."""

from pipeline.log import Stages
from pipeline.settings import CorpusSettings, Job
from pipeline.store.base import Store
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from pipeline.store.units import Corpus
from pipeline.text.corpus.docstrings import harvest_docstrings
from pipeline.text.corpus.ingest import ParentCorpus, ingest


def open_releases(job: Job) -> Releases:
    """Open the releases below release.root, with their commits at release.commits_root."""
    root, commits = job.release.root, job.release.commits_root
    return Releases(open_store(root), open_store(commits) if commits else None)


def fill_corpus(job: Job, stages: Stages) -> None:
    """Write the harvested corpus to corpus.uri if the job asks for one; equal content is not written again."""
    if job.corpus.harvest == "docstrings":
        with stages("harvest") as bar:
            bar.add(harvest_docstrings(job.corpus.uri, job.corpus.max_rows))


def read_corpus(
    settings: CorpusSettings, unit_rows: int, store: Store, parent: ParentCorpus, stages: Stages
) -> Corpus:
    """Read the corpus into units that continue those of `parent`, as a stage of its own."""
    with stages("ingest") as bar:
        seen = 0

        def progress(rows: int, _: int) -> None:
            nonlocal seen
            bar.add(rows - seen)
            seen = rows

        corpus = ingest(settings, unit_rows, store, parent, on_progress=progress)
        rows, quarantined = f"{corpus.rows:,} live rows", f"{corpus.counts['quarantined']:,} quarantined"
        bar.stage.note = f"{rows} in {len(corpus.units)} units, {quarantined}"
    return corpus
