"""A few of the rows that a night set aside, as the report shows them."""

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa

from pipeline.flows.night.candidate import Candidate
from pipeline.report.changes import QuarantinedRow
from pipeline.store.base import Store
from pipeline.text.corpus.quarantine import corpus_rows, unit_rows

_EACH = 3  # rows shown for a reason
_TABLES, _ROWS = (
    2,
    16_384,
)  # that are looked through for them: tables of the corpus's rows, and rows of each table
_FILES = 20  # units with a quarantine file of their own, looked at


def quarantined_rows(store: Store, candidate: Candidate) -> tuple[QuarantinedRow, ...]:
    """Up to three rows for each reason, in the order in which they are listed; reasons that occur late in a
    very long list have none.
    """
    found: dict[str, list[QuarantinedRow]] = {}
    for table in _tables(store, candidate):
        for line in table.slice(0, _ROWS).to_pylist():
            rows = found.setdefault(line["reason"], [])
            if len(rows) < _EACH:
                rows.append(
                    QuarantinedRow(
                        line["reason"], line["file"], line["row"], line["id"], line["detail"], line["excerpt"]
                    )
                )
    return tuple(row for rows in found.values() for row in rows)


def _tables(store: Store, candidate: Candidate) -> Iterator[pa.Table]:
    yield from islice(corpus_rows(store, candidate.corpus), _TABLES)
    yield from (table for _, table in islice(unit_rows(store, candidate.manifest), _FILES))
