"""Find groups of nearly equal rows of a release with the release's index, and store them with a page."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ConfigError
from pipeline.flows.duplicates.compare import ROUNDING, ComparedRows, DuplicateSearch, compare
from pipeline.flows.rows import LiveRows, units_by_ordinal
from pipeline.index.files.ids import Ids
from pipeline.index.files.parts import Parts, load_index
from pipeline.index.files.texts import MissingTexts, Texts
from pipeline.index.search.near_duplicates import Pairs, candidate_pairs
from pipeline.log import Stages, announce, packages
from pipeline.report.duplicates import DuplicateRow, DuplicatesReport, render
from pipeline.store.files.lease import lease
from pipeline.store.files.open_store import store_of
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import load_or_make, store_by_content, store_table_by_content
from pipeline.text.formats.excluded_ids import read_ids, write_ids

_GROUPS, _ROWS = 20, 5  # groups that are shown, and rows of each group
_PAIRS = 20  # pairs that are shown
_EDGES = (0.8, 0.9, 0.95, 0.96, 0.97, 0.98, 0.99, 0.999, 1.0001)  # cosines between which pairs are counted


def render_page(
    search: DuplicateSearch,
    compared: ComparedRows,
    ids: Ids,
    facts: Mapping[str, float],
    created: str,
) -> str:
    """Render the page with the texts of some rows. Texts that cannot be read are left out, with a message."""
    rows = _DescribedRows(search, ids)
    groups = compared.groups
    _, starts, sizes = np.unique(groups.firsts, return_index=True, return_counts=True)
    largest = np.argsort(-sizes, kind="stable")[:_GROUPS]
    shown = []
    for number in largest.tolist():
        start, size = int(starts[number]), int(sizes[number])
        members = slice(start, start + min(size, _ROWS))
        addresses = compared.addresses[groups.rows[members]]
        shown.append((size, rows.describe(addresses, compared.to_first[members])))
    nearest = np.argsort(compared.cosines, kind="stable")[:_PAIRS]
    lefts = rows.describe(compared.pairs.left[nearest], compared.cosines[nearest])
    rights = rows.describe(compared.pairs.right[nearest], compared.cosines[nearest])
    report = DuplicatesReport(
        created=created,
        facts=dict(facts),
        cosines=_count_cosines(compared.cosines, search.threshold),
        groups=tuple(shown),
        borderline=tuple(zip(lefts, rights, strict=True)),
        packages=packages("manta-embeddings", "faiss-cpu", "faiss-gpu", "numpy", "pyarrow", "scipy"),
    )
    return render(report)


def _count_cosines(cosines: np.ndarray, threshold: float) -> tuple[tuple[float, float, int], ...]:
    """Count the pairs in each range of cosines: (lowest, highest, count)."""
    edges = [threshold, *(edge for edge in _EDGES if edge > threshold)]
    counts, _ = np.histogram(cosines.astype(np.float64), [edges[0] - ROUNDING, *edges[1:]])
    return tuple(
        (low, min(1.0, high), int(count)) for low, high, count in zip(edges, edges[1:], counts, strict=False)
    )


class _DescribedRows:
    """Ids and texts of rows, as the page shows them."""

    def __init__(self, search: DuplicateSearch, ids: Ids) -> None:
        self._ids, self._texts = ids, Texts(search.store, search.manifest.units)
        self._has_texts = True

    def describe(self, addresses: np.ndarray, cosines: np.ndarray) -> tuple[DuplicateRow, ...]:
        """Return the rows of `addresses` (n,) with their cosines (n,)."""
        names = self._ids.take(addresses)["id"].to_pylist()
        texts = self._read(addresses)
        return tuple(
            DuplicateRow(str(name), text, float(cosine))
            for name, text, cosine in zip(names, texts, cosines, strict=True)
        )

    def _read(self, addresses: np.ndarray) -> list[str]:
        if self._has_texts:
            try:
                return [str(text) for text in self._texts.take(addresses).to_pylist()]
            except MissingTexts as error:
                self._has_texts = False
                announce(f"the page shows no texts: {error}")
        return [""] * len(addresses)


class UnitPairs(Stored):
    """Candidate pairs with a row of one unit."""

    rows: int
    """number of live rows of the unit"""
    pairs: FileRef
    """Parquet file of addresses, left and right"""


class FoundDuplicates(Stored):
    """Near-duplicates of a release."""

    release: int
    threshold: float
    rows: int
    """number of live rows of the release"""
    pairs: int
    """number of pairs whose cosine is at least the threshold"""
    groups: int
    grouped: int
    """number of rows in groups"""
    largest: int
    """number of rows in the largest group"""
    file: FileRef
    """Parquet file with columns group, id, first_id and cosine"""
    page: FileRef

    @property
    def repeated(self) -> int:
        """Number of rows that would be removed if each group kept its first row."""
        return self.grouped - self.groups


def find_duplicates(search: DuplicateSearch, stages: Stages) -> tuple[bool, FoundDuplicates]:
    """Find the near-duplicates of a release, or load those that an earlier run has found.

    A search that was stopped continues with the first unit that it has not finished.

    Returns:
        Whether an earlier run had finished, and the result.

    Raises:
        DataError: a file of the release is missing or damaged.
    """
    path = f"{search.folder}/duplicates.json"
    if (found := FoundDuplicates.load_complete(search.store, path)) is not None:
        return True, found
    with lease(search.store, "duplicates/leases"):  # prune must not remove the release during the search
        parts = load_index(search.store, search.manifest.index, search.manifest.tombstones)
        pairs = _candidates(search, parts, stages)
        with stages("compare", len(pairs.left), unit="pairs") as bar:
            compared = compare(search, parts, pairs)
            bar.add(len(pairs.left))
        return False, load_or_make(search.store, path, FoundDuplicates, lambda: _store(search, compared))


class DroppedIds(NamedTuple):
    """Numbers of ids in a file for corpus.exclude."""

    added: int
    """ids that this command added"""
    ids: int
    """all ids"""


def drop_repeated(search: DuplicateSearch, found: FoundDuplicates, file: str) -> DroppedIds:
    """Add the ids of all rows of each group but the first to a file for corpus.exclude.

    Ids that the file has already stay: the rows that they name are not in the release any more, and would
    come back otherwise.

    Raises:
        ConfigError: the rows of the release are chunks, or an id cannot be a line of a text file.
    """
    if "documents" in search.manifest.counts:
        raise ConfigError(
            f"--drop {file}",
            "a release whose rows are whole texts, since corpus.exclude names those",
            "a release of documents that are cut into chunks (corpus.chunk)",
            "choose the documents to leave out yourself, from the file of groups",
        )
    table = pq.read_table(found.file.open(search.store))
    repeated = table["id"].filter(pc.not_equal(table["id"], table["first_id"]))
    store, name = store_of(file)
    before = read_ids(file) if store.exists(name) else set()
    ids = before | {str(row_id) for row_id in repeated.to_pylist()}
    write_ids(file, ids)
    return DroppedIds(len(ids) - len(before), len(ids))


def _candidates(search: DuplicateSearch, parts: Parts, stages: Stages) -> Pairs:
    """Search for the near-duplicates of all rows, unit by unit."""
    one, other = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    with stages("search", search.manifest.rows) as bar:
        for unit in units_by_ordinal(search.manifest):
            done = _search_unit(search, parts, unit)
            table = pq.read_table(done.pairs.open(search.store))
            one.append(table["left"].to_numpy())
            other.append(table["right"].to_numpy())
            bar.add(done.rows)
    return Pairs.unique(np.concatenate(one), np.concatenate(other))


def _search_unit(search: DuplicateSearch, parts: Parts, unit: VectorUnit) -> UnitPairs:
    """Search for the near-duplicates of a unit's rows, unless an earlier run has done so."""
    stem = f"{search.folder}/units/{unit.ordinal:08d}"

    def make() -> UnitPairs:
        live = LiveRows(search.store, search.manifest.space_id, "id", search.manifest.dead)
        rows, found = 0, [Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        for addresses, vectors in live.batches([unit]):
            rows += len(addresses)
            found.append(candidate_pairs(parts, addresses, vectors, search.threshold))
        left, right = map(np.concatenate, zip(*found, strict=True))
        return UnitPairs(
            rows=rows,
            pairs=store_table_by_content(search.store, pa.table({"left": left, "right": right}), stem),
        )

    return load_or_make(search.store, f"{stem}.json", UnitPairs, make)


def _store(search: DuplicateSearch, compared: ComparedRows) -> FoundDuplicates:
    """Store the table and the page, and return the record, which commits them."""
    store, groups = search.store, compared.groups
    ids = Ids([file.local(store) for file in search.manifest.ids])
    table = ids.take(compared.addresses[groups.rows]).select(["id"])
    is_first = groups.rows == groups.firsts
    firsts = np.searchsorted(groups.firsts, groups.firsts)  # position of the first row of each row's group
    table = pa.table(
        {
            "group": np.cumsum(is_first),
            "id": table["id"],
            "first_id": table["id"].take(pa.array(firsts)),
            "cosine": compared.to_first.astype(np.float32),
        }
    )
    sizes = np.unique(groups.firsts, return_counts=True)[1]
    facts = {
        "release": search.manifest.release,
        "threshold": search.threshold,
        "rows": search.manifest.rows,
        "pairs": len(compared.cosines),
        "groups": int(is_first.sum()),
        "grouped": len(groups.rows),
        "largest": int(sizes.max(initial=0)),
    }
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    page = render_page(search, compared, ids, facts, now)
    return FoundDuplicates.model_validate(
        facts
        | {
            "file": store_table_by_content(store, table, f"{search.folder}/groups"),
            "page": store_by_content(store, page.encode(), f"{search.folder}/report", ".html"),
        }
    )
