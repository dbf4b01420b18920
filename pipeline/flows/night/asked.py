"""The same few queries, asked of every release of a root: what a new release answers otherwise than the
previous one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.flows.night.candidate import Candidate
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import Pool
from pipeline.store.answers import Answers, Hit
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import ReleaseUnit
from pipeline.store.units import FileRef

_ANSWERS = 4
_QUERY_LETTERS, _TEXT_LETTERS = 2_000, 300  # of a query that is asked, and of an answer's text that is kept

Found = tuple[np.ndarray, np.ndarray]
"""scores and addresses (q, k)"""


@dataclass(frozen=True)
class AskIndex:
    """Search the index in these files for raw vectors (q, d). tombstones: rows that the files still hold and
    that are dead.
    """

    store: Store
    files: tuple[FileRef, ...]
    tombstones: FileRef | None
    answers: int

    def start(self) -> Callable[[np.ndarray], Found]:
        return self._work

    def _work(self, vectors: np.ndarray) -> Found:
        from pipeline.index.build import threads
        from pipeline.index.parts import open_parts

        store, dead = self.store, Dead.load(self.store, self.tombstones).addresses
        parts = open_parts(self.files, lambda reference: reference.local(store), dead)
        with threads(1):
            return parts.search(vectors, self.answers)


def fixed_queries(store: Store, candidate: Candidate, last: Sequence[Answers]) -> tuple[str, ...]:
    """Queries of the previous release, whose answers are `last`; where it kept none, texts of a few sampled
    rows.
    """
    if last:
        return tuple(answers.query for answers in last)
    rows = texts_at(store, candidate.manifest.units, [example.query for example in candidate.built.examples])
    return tuple(dict.fromkeys(text[:_QUERY_LETTERS] for _, text in rows.values()))


def ask(run: Run, candidate: Candidate, queries: Sequence[str], vectors: np.ndarray) -> tuple[Answers, ...]:
    """Answers of the candidate's index, rows with the query's own text left out. vectors: (q, d), one for
    each query.
    """
    if not queries or not np.isfinite(vectors).all():
        return ()
    store = run.store
    asking = AskIndex(store, candidate.built.files, candidate.built.tombstones, _ANSWERS + 1)
    scores, addresses = run.workers.run(asking, vectors, Pool(1))
    rows = texts_at(store, candidate.manifest.units, np.unique(addresses[np.isfinite(scores)]).tolist())
    return tuple(
        Answers(query=query, hits=_hits(query, rows, found, values))
        for query, found, values in zip(queries, addresses.tolist(), scores.tolist(), strict=True)
    )


def texts_at(
    store: Store, units: Sequence[ReleaseUnit], addresses: Sequence[int]
) -> dict[int, tuple[str, str]]:
    """(id, text) of the rows at those addresses; reads only the row groups that hold them."""
    found: dict[int, tuple[str, str]] = {}
    for unit in units:
        rows = sorted({address & 0xFFFFFFFF for address in addresses if address >> 32 == unit.ordinal})
        if rows:
            table = _rows(pq.ParquetFile(unit.corpus.open(store)), rows)
            cells = zip(map(str, table["id"].to_pylist()), table["text"].to_pylist(), strict=True)
            found |= dict(zip([unit.ordinal << 32 | row for row in rows], cells, strict=True))
    return found


def _rows(file: pq.ParquetFile, rows: Sequence[int]) -> pa.Table:
    """Columns id and text of the rows at those positions, ascending."""
    starts = np.cumsum(
        [0, *(file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))]
    )
    groups = np.searchsorted(starts, rows, side="right") - 1
    parts = []
    for number in np.unique(groups).tolist():
        inside = np.asarray(rows)[groups == number] - starts[number]
        parts.append(file.read_row_group(number, columns=["id", "text"]).take(pa.array(inside)))
    return pa.concat_tables(parts)


def _hits(
    query: str, rows: dict[int, tuple[str, str]], addresses: Sequence[int], scores: Sequence[float]
) -> tuple[Hit, ...]:
    found = [
        (rows[address], score) for address, score in zip(addresses, scores, strict=True) if address in rows
    ]
    others = [(row, score) for row, score in found if row[1][:_QUERY_LETTERS] != query]
    return tuple(
        Hit(id=name[:_TEXT_LETTERS], score=score, text=text[:_TEXT_LETTERS])
        for (name, text), score in others[:_ANSWERS]
    )
