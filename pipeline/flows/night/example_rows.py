"""Rows that the report of a night shows with their texts: changed, quarantined, and results of searches."""

from collections.abc import Iterator
from itertools import islice

from pipeline.errors import DataError
from pipeline.flows.night.asked import texts_at
from pipeline.flows.night.candidate import Candidate
from pipeline.log import say
from pipeline.report.changes import Neighbour, QuarantinedRow, RowChange
from pipeline.report.night import SearchExample
from pipeline.store.base import Store
from pipeline.store.changes import ChangedRow, ChangedRows
from pipeline.store.manifest import ReleaseManifest
from pipeline.text.corpus.quarantine import corpus_rows, unit_rows

_EACH = 3  # rows shown for a reason
# Searched for these rows: tables of the corpus's quarantine, units with a quarantine of their own, and rows
# of each table.
_TABLES, _UNITS, _ROWS = 2, 20, 16_384


def changed_rows(store: Store, candidate: Candidate, before: ReleaseManifest | None) -> Iterator[RowChange]:
    """Yield examples of new, changed and deleted rows; none on the first night, when all rows are new."""
    if before is None:
        return
    rows = _chosen_rows(store, candidate.corpus.id)
    then = texts_at(store, before.units, [row.before for row in rows if row.before is not None])
    now = texts_at(store, candidate.manifest.units, [row.now for row in rows if row.now is not None])
    for row in rows:
        old = None if row.before is None else then.get(row.before)
        new = None if row.now is None else now.get(row.now)
        if found := new or old:
            yield RowChange(found[0], old[1] if old else None, new[1] if new else None)


def _chosen_rows(store: Store, corpus_id: str) -> tuple[ChangedRow, ...]:
    """Load the examples that ingestion chose; none if their file is missing, or damaged, which is logged."""
    try:
        chosen = ChangedRows.load_intact(store, ChangedRows.path(corpus_id))
    except DataError as error:
        say(f"the report shows no new, changed and deleted rows: {error}")
        return ()
    return chosen.rows if chosen else ()


def quarantined_rows(store: Store, candidate: Candidate) -> tuple[QuarantinedRow, ...]:
    """Return up to three rows of each reason, in file order, from the beginning of the quarantine."""
    found: dict[str, list[QuarantinedRow]] = {}
    of_units = (table for _, table in islice(unit_rows(store, candidate.manifest), _UNITS))
    for table in (*islice(corpus_rows(store, candidate.corpus), _TABLES), *of_units):
        for line in table.slice(0, _ROWS).to_pylist():
            rows = found.setdefault(line["reason"], [])
            if len(rows) < _EACH:
                rows.append(QuarantinedRow(**line))
    return tuple(row for rows in found.values() for row in rows)


def search_examples(store: Store, candidate: Candidate) -> tuple[SearchExample, ...]:
    """Return the example queries of the index with the ids and texts of their neighbours."""
    found = candidate.built.examples
    wanted = {address for example in found for address, _ in ((example.query, 1.0), *example.neighbours)}
    rows = texts_at(store, candidate.manifest.units, sorted(wanted))
    return tuple(
        SearchExample(
            rows[example.query][1],
            tuple(Neighbour(rows[at][0], score, rows[at][1]) for at, score in example.neighbours),
        )
        for example in found
    )
