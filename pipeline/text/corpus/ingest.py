"""Ingest a corpus for a night: read the files that changed, write new units, and quarantine bad rows.

Memory holds one bucket of ids, one unit, and eight bytes for every dead row.
"""

from dataclasses import dataclass, replace

from pipeline.config import digest_of
from pipeline.settings import CorpusSettings
from pipeline.store.base import Store
from pipeline.store.units import Corpus
from pipeline.text.corpus.corpus_record import (
    check_good_rows,
    corpus_digest,
    first_missing_file,
    load_complete_corpus,
)
from pipeline.text.corpus.ingestion import TABLES_VERSION, Ingestion
from pipeline.text.corpus.read_pass import OnProgress
from pipeline.text.corpus.sources import list_files

_MAX_DEAD = 0.3  # of the units' rows: they cost space, memory, and time whenever a unit is read
_MAX_UNITS = 2  # times as many units as full ones would be, and
_SMALL_UNITS = 200  # this many: nightly additions make small units, each a file to open


@dataclass(frozen=True)
class ParentCorpus:
    """The corpus of the previous night, to continue from."""

    corpus: Corpus | None = None
    next_ordinal: int = 0
    """the first unit number that no release has used"""
    rebuild_reason: str = ""
    """why none of its units can be kept; empty if they can"""


def ingest(
    corpus: CorpusSettings,
    unit_rows: int,
    store: Store,
    parent: ParentCorpus | None = None,
    *,
    on_progress: OnProgress = lambda rows, size: None,
) -> Corpus:
    """Write the corpus as units in `store`: the parent's units with their dead rows, and units of new rows.

    Only files that changed are read. Rows are taken in the order of (file name, row). Equal input, parent and
    settings give the same bytes; a corpus that is complete already is not written again.

    Args:
        corpus: the files and columns.
        unit_rows: rows of a unit at most.
        store: the store for units and tables.
        parent: the previous night's corpus, if there is one.
        on_progress: called with the rows and the input bytes read so far.

    Raises:
        DataError: a file is unusable (unless corpus.bad_files=skip), no row is good, or more than
            corpus.max_quarantined of the rows are quarantined.
        TransientError: a file changed while it was read.
    """
    files = list_files(corpus)
    digest, usable = corpus_digest(corpus, files), _usable(parent or ParentCorpus(), store)
    known = [usable.corpus and usable.corpus.id, usable.next_ordinal, usable.rebuild_reason]
    corpus_id = digest_of([TABLES_VERSION, digest, *known, unit_rows])
    complete = load_complete_corpus(store, corpus_id)
    if complete is None:
        with store.scratch() as scratch:
            complete = Ingestion(
                corpus=corpus,
                unit_rows=unit_rows,
                store=store,
                scratch=scratch,
                digest=digest,
                corpus_id=corpus_id,
                files=files,
                parent=usable.corpus,
                next_ordinal=usable.next_ordinal,
                rebuild_reason=usable.rebuild_reason,
                on_progress=on_progress,
            ).run()
    check_good_rows(complete, corpus, store)
    return complete


def _usable(parent: ParentCorpus, store: Store) -> ParentCorpus:
    """The parent with the reason to rebuild all units, if any, and without a corpus that cannot be used."""
    corpus = parent.corpus
    if corpus is None:
        return parent
    # the reasons are part of the corpus's id: other words would make another id of the same corpus
    if corpus.version != TABLES_VERSION:
        return ParentCorpus(None, parent.next_ordinal, "the corpus before was kept by another version")
    if missing := first_missing_file(store, corpus):
        return ParentCorpus(None, parent.next_ordinal, f"the corpus before lacks {missing}")
    rows, dead = sum(unit.rows for unit in corpus.units), sum(unit.dead for unit in corpus.units)
    fullest = max((unit.rows for unit in corpus.units), default=1)
    most = max(_SMALL_UNITS, _MAX_UNITS * -(-rows // fullest))
    reason = parent.rebuild_reason
    if not reason and dead > _MAX_DEAD * rows:
        reason = f"{dead / rows:.0%} of the units' rows were dead ({_MAX_DEAD:.0%} at most)"
    if not reason and len(corpus.units) > most:
        reason = f"{len(corpus.units)} units, many of them small ({most} at most)"
    return replace(parent, rebuild_reason=reason)
