"""Quarantined rows: input rows that cannot be encoded, each with its reason, in a Parquet file for people."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.schema import QUARANTINE, writer_options
from pipeline.store.units import Corpus
from pipeline.text.corpus.normalize import replace_surrogates

_EXCERPT = 200  # characters of a text that are stored
_GROUP_ROWS = 8_192


@dataclass(frozen=True)
class RejectedRow:
    """One quarantined input row."""

    row: int
    """number in the file; -1 for the file as a whole"""
    reason: str
    detail: str = ""
    id: str | None = None
    text: str | None = None


def quarantine(file: str, rejected: Iterable[RejectedRow]) -> pa.Table:
    """The rejected rows of a file as a quarantine table, sorted by row number."""
    rows = [
        {
            "file": file,
            "row": one.row,
            "id": one.id and replace_surrogates(one.id),
            "reason": one.reason,
            "detail": one.detail or None,
            "excerpt": one.text and replace_surrogates(one.text[:_EXCERPT]),
        }
        for one in sorted(rejected, key=lambda one: one.row)
    ]
    return pa.Table.from_pylist(rows, QUARANTINE)


class QuarantineFile:
    """Write quarantined rows to a scratch file.

    Row groups have a fixed length, so equal rows give equal bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = pq.ParquetWriter(path, QUARANTINE, **writer_options(QUARANTINE))
        self._waiting: list[pa.Table] = []
        self._reasons: Counter[str] = Counter()

    def add(self, rows: pa.Table) -> None:
        """Append the rows of a quarantine table."""
        self._reasons.update(rows["reason"].to_pylist())
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= _GROUP_ROWS:
            held = pa.concat_tables(self._waiting)
            whole = len(held) // _GROUP_ROWS * _GROUP_ROWS
            self._writer.write_table(held.slice(0, whole).combine_chunks(), row_group_size=_GROUP_ROWS)
            self._waiting = [held.slice(whole)]

    def close(self) -> dict[str, int]:
        """Finish the file and return the number of rows by reason."""
        if any(map(len, self._waiting)):
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
        self._writer.close()
        return dict(sorted(self._reasons.items()))


def list_quarantined(
    store: Store, manifest: ReleaseManifest, reason: str | None, limit: int
) -> tuple[dict[str, int], list[dict[str, Any]], tuple[str, ...]]:
    """List the rows that a release leaves out: rows of the corpus, then live texts without a usable vector.

    Args:
        store: the release's store.
        manifest: the release's manifest.
        reason: show only rows quarantined for this reason; None: for every reason.
        limit: rows shown for each reason.

    Returns:
        (number of rows by reason, the rows shown, URIs of the files that list all rows).

    Raises:
        DataError: a file is missing or has changed.
    """
    counts: Counter[str] = Counter()
    shown = defaultdict[str, list[dict[str, Any]]](list)
    files: dict[str, None] = {}
    try:
        for file, rows in _all_rows(store, manifest):
            files[file] = None
            for name in rows["reason"].unique().to_pylist():
                of_reason = rows.filter(pc.equal(rows["reason"], name))
                counts[name] += of_reason.num_rows
                shown[name] += of_reason.slice(0, max(0, limit - len(shown[name]))).to_pylist()
    except FileNotFoundError as error:
        raise DataError(
            str(error.filename or error),
            "a file of the release",
            "no such file",
            "restore it, or run manta nightly, which writes it again",
        ) from None
    most_first = {name: counts[name] for name in sorted(counts, key=lambda name: (-counts[name], name))}
    rows = [row for name in most_first if reason in (None, name) for row in shown[name]]
    return most_first, rows, tuple(files)


def _all_rows(store: Store, manifest: ReleaseManifest) -> Iterator[tuple[str, pa.Table]]:
    """Yield (URI of a file, some of its rows), without rows whose text is no longer in the corpus."""
    corpus = Corpus.read(store, manifest.corpus)
    if corpus.quarantine is not None:
        yield from ((store.uri_of(corpus.quarantine.path), rows) for rows in corpus_rows(store, corpus))
    yield from unit_rows(store, manifest)


def corpus_rows(store: Store, corpus: Corpus) -> Iterator[pa.Table]:
    """Yield the rows that were quarantined before encoding, in tables of bounded length."""
    if corpus.quarantine is not None:
        reader = pq.ParquetFile(corpus.quarantine.open(store))
        yield from (pa.Table.from_batches([batch]) for batch in reader.iter_batches(_GROUP_ROWS))


def unit_rows(store: Store, manifest: ReleaseManifest) -> Iterator[tuple[str, pa.Table]]:
    """Yield (URI of a file, its rows), by unit: live texts without a usable vector.

    Files without a live row are not opened.
    """
    dead = Dead.load(store, manifest.dead)
    for unit in manifest.units:
        live = ~np.isin(unit.dropped, dead.rows_of(unit.ordinal))
        if unit.quarantine is not None and live.any():
            table = pq.read_table(unit.quarantine.open(store))
            # the table and unit.dropped are in the same order
            yield store.uri_of(unit.quarantine.path), table.filter(pa.array(live))
