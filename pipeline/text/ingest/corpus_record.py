"""Digests that identify a corpus, and checks that its record is complete and enough rows are good."""

from pipeline.config import digest_of, dump_for_digest
from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.files.base import Store
from pipeline.store.files.file_sizes import ListedFiles
from pipeline.store.records.units import BAD_FILES, FILTERED, Corpus, counts_under, describe_filtered
from pipeline.text.formats.excluded_ids import ExcludingCorpus
from pipeline.text.ingest.chunking import ChunkedCorpus
from pipeline.text.normalize import NORMALIZER_VERSION
from pipeline.text.sources.sources import SourceFile, columns_read

# Increased with every change of the temporary files, of the sizes of buckets, and of how items are formed.
_WORK_VERSION = 6

NOT_READING = frozenset({"uri", "snapshot", "format", "harvest", "max_quarantined", "fingerprint", "exclude"})
"""Settings of a corpus that do not decide how a file is read.

They name the files, whose names, sizes and stamps are compared anyway, or the file of excluded ids, of which
the ids count, or limit what may be quarantined. All other settings count; the settings of chunks only if
texts are cut.
"""
# Settings that are in every digest. Newer settings are left out at their defaults, so that digests stay the
# same.
_FIRST_READING = frozenset({"id", "text", "keep", "max_rows", "bad_files"})
_FIRST_CHUNK = frozenset({"by", "max_tokens", "max_characters", "overlap"})


def reading_digest(corpus: CorpusSettings) -> str:
    """Return the sha256 (hex) of the settings that decide how rows are read.

    If it changes, unchanged files have to be read again.
    """
    settings = dump_for_digest(
        corpus, leave_out=NOT_READING | {"chunk", "cutter", "excluded", "left_out"}, always=_FIRST_READING
    )
    if isinstance(corpus, ChunkedCorpus):
        chunk = dump_for_digest(corpus.chunk, leave_out=frozenset(), always=_FIRST_CHUNK)
        settings |= {"chunk": chunk, "space_id": corpus.cutter.space_id}
    if isinstance(corpus, ExcludingCorpus) and corpus.excluded is not None:
        settings |= {"excluded": corpus.excluded.digest}
    if isinstance(corpus, ExcludingCorpus) and corpus.left_out is not None:
        settings |= {"left_out": corpus.left_out.digest}
    return digest_of({"corpus": settings, "normalizer": NORMALIZER_VERSION})


def corpus_digest(corpus: CorpusSettings, files: list[SourceFile]) -> str:
    """Return the sha256 (hex) of everything that decides a corpus's rows: equal digests mean equal rows."""
    used = set(columns_read(corpus))
    listing = [
        [
            *(file.name, file.size, file.stamp, file.format),
            {key: value for key, value in file.partitions.items() if key in used},
        ]
        for file in files
    ]
    return digest_of({"reading": reading_digest(corpus), "files": listing})


def tables_folder(corpus_id: str) -> str:
    """Return the folder of a corpus's tables."""
    return f"keys/{corpus_id}"


def work_folder(corpus_id: str) -> str:
    """Return the folder of the files that are needed only until a corpus's record is written.

    A run continues from the files that an earlier run left there, if it divides the work in the same way.
    """
    return f"{tables_folder(corpus_id)}/work/{_WORK_VERSION}"


def record_path(corpus_id: str) -> str:
    """Return the path of a corpus's record, which `ingest` writes last."""
    return f"{tables_folder(corpus_id)}/corpus.json"


def store_record(store: Store, record: Corpus) -> None:
    """Create the record; replace an earlier run's if it is corrupt or its files are incomplete."""
    path, content = record_path(record.id), record.to_json()
    if not store.create(path, content) and not load_complete_corpus(store, record.id):
        store.write(path, content)


def load_complete_corpus(store: Store, corpus_id: str) -> Corpus | None:
    """Load the corpus that an earlier run wrote; None if a file of it is missing or truncated."""
    try:
        record = Corpus.load(store, record_path(corpus_id))
    except DataError:  # truncated, by a crash on a file system without hard links
        return None
    return record if record is not None and not first_missing_file(store, record) else None


def first_missing_file(store: Store, corpus: Corpus) -> str | None:
    """Return the path of a file that is missing or has another size; None if all files are complete."""
    folders = {reference.path.rpartition("/")[0] for reference in corpus.references()}
    listed = ListedFiles(store, sorted(folders))
    missing = (file.path for file in corpus.references() if not listed.has(file.path, file.bytes))
    return next(missing, None)


def check_good_rows(record: Corpus, corpus: CorpusSettings, store: Store) -> None:
    """Raise DataError if no row is good, or more than corpus.max_quarantined of the rows are quarantined.

    Rows that corpus.where and corpus.exclude leave out do not count.
    """
    rows, good, bad = (record.counts[name] for name in ("rows", "good", "quarantined"))
    remedy = f"see {store.uri_of(record.quarantine.path)}" if record.quarantine else "check corpus.uri"
    quarantined = counts_under("quarantined_", record.counts)
    reasons = ", ".join(f"{reason} {count}" for reason, count in quarantined.items())
    if filtered := record.counts.get(FILTERED, 0):
        rows -= filtered
        remedy = remedy if record.quarantine else "check corpus.where and corpus.exclude"
        reasons = ", ".join(filter(None, (reasons, describe_filtered(record.counts))))
    if not good:
        skipped = f", {record.counts[BAD_FILES]} unusable files" if BAD_FILES in record.counts else ""
        raise DataError(
            corpus.uri,
            "at least one row with an id and a text",
            f"{rows} rows{f' ({reasons})' if reasons else ''}{skipped}",
            remedy,
        )
    if bad > corpus.max_quarantined * rows:
        raise DataError(
            corpus.uri,
            f"at most {corpus.max_quarantined:.0%} bad rows (corpus.max_quarantined)",
            f"{bad} of {rows} rows ({reasons})",
            f"{remedy}, then fix the corpus or raise corpus.max_quarantined",
        )
