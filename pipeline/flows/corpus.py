"""Open the releases of a job, and harvest, sample and read its corpus."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from pipeline.errors import ConfigError
from pipeline.log import Stages, counted
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import with_absolute_paths
from pipeline.settings import ChunkSettings, CorpusSettings, EncoderSettings, Job
from pipeline.store.records.units import SKIPPED_FILES, Corpus, describe_filtered
from pipeline.store.releases.left_out import load_left_out
from pipeline.store.releases.release import Releases
from pipeline.text.chunks.cut import TextCutter
from pipeline.text.formats.docstrings import harvest_docstrings
from pipeline.text.formats.excluded_ids import with_excluded_ids
from pipeline.text.formats.reader import CorpusSurvey, read_batches
from pipeline.text.formats.reject_rows import SourceBatch
from pipeline.text.ingest.chunking import ChunkedCorpus, Cutter, CutTexts
from pipeline.text.sources.sources import SourceFile
from pipeline.text.task_map import OnProgress


def open_releases(job: Job) -> Releases:
    """Open the releases below release.root, with their commits at release.commits_root."""
    return Releases.open(job.release.root, job.release.commits_root)


class EncoderCutter(Cutter):
    """Cuts texts into chunks that fit an encoder, with its tokenizer."""

    chunk: ChunkSettings
    encoder: EncoderSettings

    def start(self) -> CutTexts:
        """Load the tokenizer, and return the function that cuts texts."""
        return TextCutter(self.chunk, open_folder(self.encoder).tokenizer())


def corpus_of(job: Job, encoder: EncoderSettings | None = None) -> CorpusSettings:
    """Return the job's corpus settings with the ids that are left out, and the cutter of corpus.chunk.

    The ids are those of corpus.exclude, and those that erasures in the root leave out for good. The cutter
    fits the job's encoder.

    Args:
        encoder: settings of the job's encoder with a path that workers can read; None: the job's own.

    Raises:
        ConfigError: corpus.chunk.max_tokens is more than the encoder takes, or corpus.exclude is missing.
        DataError: corpus.exclude, or the file of ids that an erasure left, cannot be read.
    """
    releases = open_releases(job)
    left_out = load_left_out(releases.commits, releases.store)
    corpus, chunk = with_excluded_ids(job.corpus, left_out), job.corpus.chunk
    if chunk.by is None:
        return corpus
    folder = open_folder(job.encoder)
    if chunk.max_tokens is not None and chunk.max_tokens > folder.max_length:
        raise ConfigError(
            "corpus.chunk.max_tokens",
            f"at most {folder.max_length:,} tokens, which the encoder takes (encoder.max_length)",
            f"{chunk.max_tokens:,}",
            "lower it, leave it out, or raise encoder.max_length where the encoder takes more",
        )
    encoder = encoder or with_absolute_paths(job.encoder)
    cutter = EncoderCutter(space_id=folder.space_id, chunk=chunk, encoder=encoder)
    return ChunkedCorpus(**dict(corpus), cutter=cutter)


def describe_live(corpus: Corpus) -> str:
    """Describe the number of live rows; if rows are chunks, also describe the number of documents."""
    if not corpus.is_chunked:
        return counted(corpus.rows, "live row")
    return f"{counted(corpus.rows, 'live chunk')} of {counted(corpus.counts['good'], 'document')}"


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
    """Run `ingestion` as the stage "ingest". It reports its progress to the function that it is given."""
    with stages("ingest") as bar:
        corpus = ingestion(lambda rows, _: bar.reach(rows))
        bar.stage.note = (
            f"{describe_live(corpus)} in {counted(len(corpus.units), 'unit')}, "
            f"{corpus.counts['quarantined']:,} quarantined"
        )
        if unread := describe_unread(corpus):
            bar.stage.note += f", {unread}"
    return corpus


def describe_unread(corpus: Corpus) -> str:
    """Describe the rows and files that settings of the corpus left out; "" if none.

    The unread rest of a file counts as one file, not as rows, if its number of rows is unknown.
    """
    rows, files = corpus.counts.get("skipped", 0), corpus.counts.get(SKIPPED_FILES, 0)
    names = [f"{counted(rows, 'row')}"] * bool(rows) + [f"the rest of {counted(files, 'file')}"] * bool(files)
    beyond = f"{' and '.join(names)} beyond corpus.max_rows not read" if names else ""
    return ", ".join(filter(None, (describe_filtered(corpus.counts), beyond)))
