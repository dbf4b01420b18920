"""Ingest a corpus for a night: read the files that changed, write new units, and quarantine bad rows.

Memory holds a few buckets of ids, one unit, and the names and counts of all files.
"""

from dataclasses import replace

from pipeline.config import digest_of
from pipeline.errors import TransientError
from pipeline.log import counted, say
from pipeline.settings import CorpusSettings
from pipeline.store.base import Store
from pipeline.store.local import ScratchStore
from pipeline.store.units import EMPTIED, Corpus
from pipeline.text.corpus.corpus_parts import TABLES_VERSION
from pipeline.text.corpus.corpus_record import (
    check_good_rows,
    corpus_digest,
    first_missing_file,
    load_complete_corpus,
    work_folder,
)
from pipeline.text.corpus.ingestion import Ingestion
from pipeline.text.corpus.sources import list_corpus
from pipeline.text.corpus.task_map import TaskRunner, WorkFolder, map_here
from pipeline.text.corpus.tonights_files import ParentCorpus, inspect_files

# All units are rebuilt if more than this proportion of their rows is dead: dead rows cost space, memory, and
# time whenever a unit is read.
_MAX_DEAD = 0.3
# All units are rebuilt if there are more than _SMALL_UNITS and more than _MAX_UNITS times as many as full
# units would be: every night adds small units, and each is a file to open.
_MAX_UNITS = 2
_SMALL_UNITS = 200
_SHOWN = 3  # names of files in a warning


def ingest(
    corpus: CorpusSettings,
    unit_rows: int,
    store: Store,
    parent: ParentCorpus | None = None,
    runner: TaskRunner = TaskRunner(),
) -> Corpus:
    """Write a corpus to `store`: keep the parent's units, mark their dead rows, and write units of new rows.

    Only files that changed are read. Rows are taken in the order of (file name, row). Equal input, parent and
    settings give the same bytes; a corpus that is already complete is not written again.

    Args:
        corpus: settings that name the files and columns.
        unit_rows: largest number of rows of a unit.
        store: store of the units and tables.
        parent: the previous night's corpus; None if there is none.
        runner: runs the tasks that the work is divided into.

    Raises:
        DataError: a file is unusable (unless corpus.bad_files=skip), no row is good, or more than
            corpus.max_quarantined of the rows are quarantined.
        TransientError: a file changed while it was read.
    """
    listed = list_corpus(corpus)
    digest, parent = corpus_digest(corpus, listed.files), _usable_parent(parent or ParentCorpus(), store)
    parent_facts = [parent.corpus and parent.corpus.id, parent.next_ordinal, parent.rebuild_reason or ""]
    corpus_id = digest_of([TABLES_VERSION, digest, *parent_facts, unit_rows])
    record = load_complete_corpus(store, corpus_id)
    if record is None:
        with store.scratch() as scratch:
            work = ScratchStore(str(scratch)) if runner.map_tasks is map_here else store
            ingestion = Ingestion(
                tonight=inspect_files(corpus, listed, parent, store, runner.map_tasks),
                unit_rows=unit_rows,
                store=store,
                work=WorkFolder(work, work_folder(corpus_id)),
                scratch=scratch,
                map_tasks=runner.map_tasks,
                digest=digest,
                corpus_id=corpus_id,
                next_ordinal=parent.next_ordinal,
                on_progress=runner.on_progress,
            )
            record = _run(ingestion)
    check_good_rows(record, corpus, store)
    for sentence in filter(None, (listed.warning, _emptied(record))):
        say(f"warning: {sentence}")
    return record


def _emptied(record: Corpus) -> str | None:
    """Return a sentence about the files that have no rows any more; None if there are none."""
    names = [file.name for file in record.files if EMPTIED in file.notes]
    more = ", ..." if len(names) > _SHOWN else ""
    if not names:
        return None
    return f"{counted(len(names), 'file')} had rows, and now none: {', '.join(names[:_SHOWN])}{more}"


def _run(ingestion: Ingestion) -> Corpus:
    """Run an ingestion and remove its temporary files.

    If another run of the same ingestion removes them first, its record is returned.
    """
    try:
        record = ingestion.run()
    except (FileNotFoundError, TransientError):
        finished = load_complete_corpus(ingestion.store, ingestion.corpus_id)
        if finished is None:
            raise
        record = finished
    ingestion.remove_work()
    return record


def _usable_parent(parent: ParentCorpus, store: Store) -> ParentCorpus:
    """Return the parent without its corpus if that cannot be used, and with the reason to rebuild, if any."""
    corpus = parent.corpus
    if corpus is None:
        return parent
    # Do not reword the reasons: they are part of the corpus's id.
    if corpus.version != TABLES_VERSION:
        return ParentCorpus(None, parent.next_ordinal, "the corpus before was kept by another version")
    if missing := first_missing_file(store, corpus):
        return ParentCorpus(None, parent.next_ordinal, f"the corpus before lacks {missing}")
    rows, dead = sum(unit.rows for unit in corpus.units), sum(unit.dead for unit in corpus.units)
    fullest = max((unit.rows for unit in corpus.units), default=1)
    max_units = max(_SMALL_UNITS, _MAX_UNITS * -(-rows // fullest))
    reason = parent.rebuild_reason
    if not reason and dead > _MAX_DEAD * rows:
        reason = f"{dead / rows:.0%} of the units' rows were dead ({_MAX_DEAD:.0%} at most)"
    if not reason and len(corpus.units) > max_units:
        reason = f"{len(corpus.units)} units, many of them small ({max_units} at most)"
    return replace(parent, rebuild_reason=reason)
