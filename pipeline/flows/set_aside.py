"""A few of the rows that a night set aside, as the report shows them."""

from collections.abc import Iterator

import pyarrow.parquet as pq

from pipeline.flows.candidate import Candidate
from pipeline.report.changes import QuarantinedRow
from pipeline.store.store import Store
from pipeline.store.units import FileRef

_EACH = 3               # rows shown for a reason
_BATCH, _BATCHES = 2_048, 8         # rows that are looked through for them, from the beginning of each file
_FILES = 20             # units with a quarantine file of their own, looked at


def quarantined_rows(store: Store, candidate: Candidate) -> tuple[QuarantinedRow, ...]:
    """Up to three rows for each reason, in the order in which they are listed; reasons that occur late in a very long list have none."""
    units = [unit.quarantine for unit in candidate.manifest.units if unit.quarantine]
    files = [*([candidate.corpus.quarantine] if candidate.corpus.quarantine else []), *units[:_FILES]]
    found: dict[str, list[QuarantinedRow]] = {}
    for reference in files:
        for row in _listed(store, reference):
            rows = found.setdefault(row.reason, [])
            if len(rows) < _EACH:
                rows.append(row)
    return tuple(row for rows in found.values() for row in rows)


def _listed(store: Store, reference: FileRef) -> Iterator[QuarantinedRow]:
    batches = pq.ParquetFile(store.open(reference.path, reference.sha256)).iter_batches(_BATCH)
    for _, batch in zip(range(_BATCHES), batches, strict=False):
        for line in batch.to_pylist():
            yield QuarantinedRow(line["reason"], line["file"], line["row"], line["id"], line["detail"], line["excerpt"])
