"""Choose example rows for the report of a night: changed rows, quarantined rows and search results."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.fixed_queries import texts_at
from pipeline.log import say
from pipeline.report.changes import QuarantinedRow, RowChange
from pipeline.store.answers import Answers, Hit
from pipeline.store.base import Store
from pipeline.store.changes import ChangedRow, ChangedRows
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.units import Corpus
from pipeline.text.corpus.quarantine import corpus_rows, unit_rows, with_places

_PER_REASON = 3  # quarantined rows shown for each reason
# Limits of the search for quarantined rows.
_MAX_CORPUS_TABLES = 2
_MAX_UNITS = 20  # units whose quarantined rows are read
_MAX_TABLE_ROWS = 16_384


def deleted_rows(store: Store, corpus_id: str, previous: ReleaseManifest) -> Iterator[RowChange]:
    """Yield examples of the rows that a corpus has no longer."""
    addresses = [row.before for row in _chosen_rows(store, corpus_id) if row.now is None]
    texts = texts_at(store, previous.units, [address for address in addresses if address is not None])
    yield from (RowChange(row.id, row.text, None) for row in texts.values())


def changed_rows(store: Store, candidate: Candidate, previous: ReleaseManifest | None) -> Iterator[RowChange]:
    """Yield examples of new, changed and deleted rows; none on the first night, when all rows are new."""
    if previous is None:
        return
    rows = _chosen_rows(store, candidate.corpus.id)
    old_texts = texts_at(store, previous.units, [row.before for row in rows if row.before is not None])
    new_texts = texts_at(store, candidate.manifest.units, [row.now for row in rows if row.now is not None])
    for row in rows:
        old = None if row.before is None else old_texts.get(row.before)
        new = None if row.now is None else new_texts.get(row.now)
        if either := new or old:
            yield RowChange(either.id, old.text if old else None, new.text if new else None)


def _chosen_rows(store: Store, corpus_id: str) -> tuple[ChangedRow, ...]:
    """Load the examples that ingestion chose; none if their file is missing, or damaged, which is logged."""
    try:
        chosen = ChangedRows.load_intact(store, ChangedRows.path(corpus_id))
    except DataError as error:
        say(f"the report shows no new, changed and deleted rows: {error}")
        return ()
    return chosen.rows if chosen else ()


def quarantined_rows(store: Store, candidate: Candidate) -> tuple[QuarantinedRow, ...]:
    """Return the first rows of each reason for quarantine, at most three, in the order of the files."""
    unit_tables = (table for _, table in islice(unit_rows(store, candidate.manifest), _MAX_UNITS))
    return _first_of_each_reason(store, candidate.corpus, unit_tables)


def rejected_rows(store: Store, corpus: Corpus) -> tuple[QuarantinedRow, ...]:
    """Return `quarantined_rows` of a corpus that is not encoded."""
    return _first_of_each_reason(store, corpus, ())


def _first_of_each_reason(
    store: Store, corpus: Corpus, unit_tables: Iterable[pa.Table]
) -> tuple[QuarantinedRow, ...]:
    found: dict[str, list[dict[str, Any]]] = {}
    for table in (*islice(corpus_rows(store, corpus), _MAX_CORPUS_TABLES), *unit_tables):
        for row in table.slice(0, _MAX_TABLE_ROWS).to_pylist():
            rows = found.setdefault(row["reason"], [])
            if len(rows) < _PER_REASON:
                rows.append(row)
    chosen = [row for rows in found.values() for row in rows]
    return tuple(QuarantinedRow(**row) for row in with_places(store, corpus, chosen))


def search_examples(store: Store, candidate: Candidate) -> tuple[Answers, ...]:
    """Return the example queries of the index with the ids and texts of their neighbours.

    A query whose row has died is left out if its unit is gone: only its vector is stored.
    """
    examples = candidate.built.examples
    addresses = {example.query for example in examples}
    addresses |= {address for example in examples for address, _ in example.neighbours}
    rows = texts_at(store, candidate.manifest.units, sorted(addresses))
    return tuple(
        Answers(
            query=rows[example.query].text,
            hits=tuple(
                Hit(id=rows[address].id, score=score, text=rows[address].text)
                for address, score in example.neighbours
            ),
        )
        for example in examples
        if example.query in rows
    )
