"""The fixed queries: a few queries that every release of a root answers, to compare its answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.flows.night.candidate import Candidate
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import Pool
from pipeline.store.address import address_of, ordinal_of, row_of
from pipeline.store.answers import Answers, Hit
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseUnit
from pipeline.store.stored import FileRef

_ANSWERS = 4
# Characters of a query that are asked, and of an answer's id and text that are kept.
_QUERY_LENGTH, _TEXT_LENGTH = 2_000, 300

Found = tuple[np.ndarray, np.ndarray]
"""scores and addresses (q, k)"""


@dataclass(frozen=True)
class AskIndex:
    """Search the index in these files for raw vectors (q, d).

    Attributes:
        tombstones: addresses of dead rows that the files contain.
        answers: number of answers to each.
    """

    store: Store
    files: tuple[FileRef, ...]
    tombstones: FileRef | None
    answers: int

    def start(self) -> Callable[[np.ndarray], Found]:
        """Open the index; the work finds the nearest rows of query vectors (Q, d)."""
        from pipeline.index.build import threads
        from pipeline.index.parts import load_parts

        parts = load_parts(self.store, self.files, self.tombstones)

        def search(vectors: np.ndarray) -> Found:
            with threads(1):
                return parts.search(vectors, self.answers)

        return search


def fixed_queries(store: Store, candidate: Candidate, last: Sequence[Answers]) -> tuple[str, ...]:
    """Return the queries of the previous release's answers `last`; without any, texts of sampled rows."""
    if last:
        return tuple(answers.query for answers in last)
    rows = texts_at(store, candidate.manifest.units, [example.query for example in candidate.built.examples])
    return tuple(dict.fromkeys(text[:_QUERY_LENGTH] for _, text in rows.values()))


def ask(run: Run, candidate: Candidate, queries: Sequence[str], vectors: np.ndarray) -> tuple[Answers, ...]:
    """Search the candidate's index, leaving out rows with the query's own text.

    Args:
        vectors: (q, d), one for each query. If any is not finite, nothing is asked.
    """
    if not queries or not np.isfinite(vectors).all():
        return ()
    built = candidate.built
    scores, addresses = run.workers.run(
        AskIndex(run.store, built.files, built.tombstones, _ANSWERS + 1), vectors, Pool(1)
    )
    rows = texts_at(run.store, candidate.manifest.units, np.unique(addresses[np.isfinite(scores)]).tolist())
    answers = []
    for query, found, values in zip(queries, addresses.tolist(), scores.tolist(), strict=True):
        hits = [
            Hit(id=rows[address][0][:_TEXT_LENGTH], score=score, text=rows[address][1][:_TEXT_LENGTH])
            for address, score in zip(found, values, strict=True)
            if address in rows and rows[address][1][:_QUERY_LENGTH] != query
        ]
        answers.append(Answers(query=query, hits=tuple(hits[:_ANSWERS])))
    return tuple(answers)


def texts_at(
    store: Store, units: Sequence[ReleaseUnit], addresses: Sequence[int]
) -> dict[int, tuple[str, str]]:
    """Return (id, text) of the rows at these addresses. Reads only the row groups that contain them."""
    found: dict[int, tuple[str, str]] = {}
    for unit in units:
        rows = sorted({row_of(address) for address in addresses if ordinal_of(address) == unit.ordinal})
        if rows:
            table = _rows(pq.ParquetFile(unit.corpus.open(store)), rows)
            cells = zip(map(str, table["id"].to_pylist()), table["text"].to_pylist(), strict=True)
            found |= dict(zip([address_of(unit.ordinal, row) for row in rows], cells, strict=True))
    return found


def _rows(file: pq.ParquetFile, rows: Sequence[int]) -> pa.Table:
    """Return columns id and text of the rows at ascending positions."""
    starts = np.cumsum(
        [0, *(file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))]
    )
    groups = np.searchsorted(starts, rows, side="right") - 1
    return pa.concat_tables(
        file.read_row_group(number, columns=["id", "text"]).take(
            pa.array(np.asarray(rows)[groups == number] - starts[number])
        )
        for number in np.unique(groups).tolist()
    )
