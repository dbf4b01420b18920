"""The fixed queries: a few queries that are searched in every release of a root, to compare the results."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.flows.context import FlowContext
from pipeline.flows.index.released import use_index
from pipeline.flows.night.candidate import Candidate
from pipeline.log import announce
from pipeline.stats.tensors import unpack
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.releases.fixed_query_results import Answers, Hit
from pipeline.store.rows.address import address_of, ordinal_of, row_of

if TYPE_CHECKING:
    from pipeline.index.measure.searched_parts import SearchedParts

_HITS = 4  # stored for each query
_QUERY_LENGTH = 2_000  # characters of a text that becomes a query
_SHORT_QUERY = 12  # characters of the shortest useful query: "Yes." has no neighbours worth comparing
_SAMPLED = 48  # texts
_TEXT_LENGTH = 300  # longest prefix stored of a hit's id and text
_READERS = 4  # corpus units read concurrently

ScoresAndAddresses = tuple[np.ndarray, np.ndarray]
"""(q, k) each"""


class RowText(NamedTuple):
    """The id and the text of a row."""

    id: str
    text: str


@dataclass(frozen=True, eq=False)
class AskIndex:
    """Search an index for raw vectors (q, d)."""

    vectors: np.ndarray
    hits: int
    """number of hits for each query"""

    def __call__(self, parts: "SearchedParts") -> ScoresAndAddresses:
        """Find the nearest rows in all parts together, as searchers do."""
        from pipeline.index.library import faiss_threads

        with faiss_threads(1):
            return parts.search_until_k(self.vectors, self.hits)


def fixed_queries(store: Store, candidate: Candidate, previous: Sequence[Answers]) -> tuple[str, ...]:
    """Return the fixed queries: those of the previous release, and texts of sampled rows if they are too few.

    Short texts such as "Yes." become queries only if the sample has too few longer ones.

    Args:
        previous: answers of the previous release.
    """
    kept = tuple(answers.query for answers in previous)
    examples = [example.query for example in candidate.built.examples]
    if len(kept) >= len(examples):
        return kept
    rows = texts_at(store, candidate.manifest.units, examples)
    texts = dict.fromkeys(text[:_QUERY_LENGTH] for _, text in rows.values())
    if any(map(is_short, texts)):
        sampled = (text[:_QUERY_LENGTH] for text in sampled_texts(store, candidate))
        texts |= dict.fromkeys(text for text in sampled if not is_short(text))
    new = [text for text in sorted(texts, key=is_short) if text not in kept]
    return (*kept, *new[: len(examples) - len(kept)])


def sampled_texts(store: Store, candidate: Candidate) -> list[str]:
    """Return the texts of a few dozen of the rows that were sampled to measure the index."""
    addresses = unpack(candidate.built.queries.read(store), "addresses", "vectors")[0]["addresses"]
    sampled = addresses[:: max(1, len(addresses) // _SAMPLED)][:_SAMPLED].tolist()
    return [row.text for row in texts_at(store, candidate.manifest.units, sampled).values()]


def is_short(query: str) -> bool:
    """Return whether a text says too little for its results to be worth comparing."""
    return len(query) < _SHORT_QUERY


def answer_queries(
    context: FlowContext,
    candidate: Candidate,
    queries: Sequence[str],
    vectors: np.ndarray,
    previous: Sequence[Answers] = (),
) -> tuple[Answers, ...]:
    """Return the rows of the candidate nearest to each query, except rows whose text is the query.

    Without release.show_deleted_texts, a query of the previous release is left out if none of these rows has
    its text: it is the text of a row that was deleted or changed. The next night replaces it.

    Args:
        queries: the fixed queries.
        vectors: (q, d), one for each query. If any is not finite, nothing is searched.
        previous: answers of the previous release.
    """
    if not queries or not np.isfinite(vectors).all():
        return ()
    scores, addresses = use_index(context, candidate.manifest, AskIndex(vectors, _HITS + 1))
    rows = texts_at(
        context.store, candidate.manifest.units, np.unique(addresses[np.isfinite(scores)]).tolist()
    )
    answers = []
    of_live_rows = set(queries).difference(each.query for each in previous)
    for query, query_addresses, query_scores in zip(
        queries, addresses.tolist(), scores.tolist(), strict=True
    ):
        found = [pair for pair in zip(query_addresses, query_scores, strict=True) if pair[0] in rows]
        hits = [
            Hit(id=rows[address].id[:_TEXT_LENGTH], score=score, text=rows[address].text[:_TEXT_LENGTH])
            for address, score in found
            if rows[address].text[:_QUERY_LENGTH] != query
        ]
        shows_all = context.job.release.show_deleted_texts or query in of_live_rows
        if shows_all or len(hits) < len(found):
            answers.append(Answers(query=query, hits=tuple(hits[:_HITS])))
    if left_out := len(queries) - len(answers):
        announce(
            f"{left_out} of {len(queries)} fixed queries left out, because no row near them has their text "
            "any more (release.show_deleted_texts)"
        )
    return tuple(answers)


def texts_at(store: Store, units: Sequence[VectorUnit], addresses: Sequence[int]) -> dict[int, RowText]:
    """Return the ids and texts of rows by their addresses. Reads only the row groups that contain them."""
    rows_by_ordinal: dict[int, set[int]] = defaultdict(set)
    for address in addresses:
        rows_by_ordinal[ordinal_of(address)].add(row_of(address))

    def read(unit: VectorUnit) -> dict[int, RowText]:
        rows = sorted(rows_by_ordinal[unit.ordinal])
        table = _read_rows(pq.ParquetFile(unit.corpus.open(store)), rows)
        columns = table["id"].to_pylist(), table["text"].to_pylist()
        return {
            address_of(unit.ordinal, row): RowText(str(row_id), text)
            for row, row_id, text in zip(rows, *columns, strict=True)
        }

    needed = [unit for unit in units if unit.ordinal in rows_by_ordinal]
    return {address: row for rows in in_threads(read, needed, _READERS) for address, row in rows.items()}


def _read_rows(file: pq.ParquetFile, rows: Sequence[int]) -> pa.Table:
    """Read columns id and text of the rows at ascending positions."""
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
