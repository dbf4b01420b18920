"""Identity and record of a corpus: digests of its input, loading it, and checking how many rows are good."""

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.base import Store
from pipeline.store.units import Corpus, counts_under
from pipeline.text.corpus.normalize import NORMALIZER_VERSION
from pipeline.text.corpus.sources import SourceFile


def reading_digest(corpus: CorpusSettings) -> str:
    """sha256 (hex) of the settings that decide how rows are read.

    If it changes, unchanged files are read again.
    """
    settings = corpus.model_dump(mode="json", include={"id", "text", "keep", "max_rows", "bad_files"})
    return digest_of({"corpus": settings, "normalizer": NORMALIZER_VERSION})


def corpus_digest(corpus: CorpusSettings, files: list[SourceFile]) -> str:
    """sha256 (hex) of everything that decides the corpus's rows; equal digests mean equal rows."""
    used = {corpus.id, corpus.text, *corpus.keep}
    listing = [
        [
            *(file.name, file.size, file.stamp, file.format),
            {key: value for key, value in file.partitions.items() if key in used},
        ]
        for file in files
    ]
    return digest_of({"reading": reading_digest(corpus), "files": listing})


def record_path(corpus_id: str) -> str:
    """Path of a corpus's record, which `ingest` writes last."""
    return f"keys/{corpus_id}/corpus.json"


def load_complete_corpus(store: Store, corpus_id: str) -> Corpus | None:
    """Load the corpus that an earlier run wrote; None if a file of it is missing or truncated."""
    try:
        found = Corpus.load(store, record_path(corpus_id))
    except DataError:  # truncated on a file system without hard links
        return None
    return found if found is not None and not first_missing_file(store, found) else None


def first_missing_file(store: Store, corpus: Corpus) -> str | None:
    """Path of a file of the corpus that is missing or has another size; None if all are complete."""
    needed = {reference.path: reference.bytes for reference in corpus.references()}
    folders = sorted({path.rpartition("/")[0] for path in needed})
    present = {entry.path: entry.size for folder in folders for entry in store.list(folder)}
    return next((path for path, size in needed.items() if present.get(path) != size), None)


def check_good_rows(made: Corpus, corpus: CorpusSettings, store: Store) -> None:
    """DataError if no row is good, or more than corpus.max_quarantined of the rows are quarantined."""
    rows, good, bad = (made.counts[name] for name in ("rows", "good", "quarantined"))
    listed = f"see {store.uri_of(made.quarantine.path)}" if made.quarantine else "check corpus.uri"
    quarantined = counts_under("quarantined_", made.counts)
    reasons = ", ".join(f"{reason} {count}" for reason, count in quarantined.items())
    if not good:
        skipped = f", {made.counts['bad_files']} unusable files" if "bad_files" in made.counts else ""
        raise DataError(
            corpus.uri,
            "at least one row with an id and a text",
            f"{rows} rows{f' ({reasons})' if reasons else ''}{skipped}",
            listed,
        )
    if bad > corpus.max_quarantined * rows:
        raise DataError(
            corpus.uri,
            f"at most {corpus.max_quarantined:.0%} bad rows (corpus.max_quarantined)",
            f"{bad} of {rows} rows ({reasons})",
            f"{listed}, then fix the corpus or raise corpus.max_quarantined",
        )
