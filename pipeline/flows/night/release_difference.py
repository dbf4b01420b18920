"""The difference between two releases: rows, settings, gates, drift, and answers to the same queries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.flows.key_tables import live_rows_by_bucket
from pipeline.flows.night.check_gates import CANARIES, load_canary_vectors
from pipeline.flows.night.gates.fixed_queries import is_short, texts_at
from pipeline.flows.night.release_changes import differing_settings, measure_drift, pair_values
from pipeline.index.search.search import OpenRelease
from pipeline.stats.drift import Drift
from pipeline.store.files.base import Store
from pipeline.store.releases.manifest import ReleaseManifest

_HITS = 10  # compared for each query
_COLUMNS = ("id", "text_key", "carried", "address")  # columns of a key table that a comparison reads


class Example(NamedTuple):
    """A row with its text in both releases; None if the row is not in that release, "" if it is not shown."""

    id: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class RowDifferences:
    """Differences between the live rows of two releases, which are matched by id."""

    counts: dict[str, int]
    """number of rows that are new, changed (the text differs), kept (only a value in a column of corpus.keep
    differs), deleted, and unchanged"""
    examples: dict[str, tuple[Example, ...]]
    """the first rows of each kind, except unchanged rows"""


class ComparedAnswers(NamedTuple):
    """Ids of the rows nearest to a query, best first, in both releases."""

    query: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def shared(self) -> int:
        """Number of ids in both answers."""
        return len(set(self.before) & set(self.after))


@dataclass(frozen=True)
class Difference:
    """The difference between two releases."""

    before: ReleaseManifest
    after: ReleaseManifest
    rows: RowDifferences
    drift: Drift | None
    """drift of the vectors; None if it is unknown (see `measure_drift`)"""
    answers: tuple[ComparedAnswers, ...]
    settings: dict[str, tuple[Any, Any]]
    """(earlier, later) values of the settings that differ, by their full names"""
    gates: dict[str, tuple[Any, Any]]
    """(earlier, later) values of all gates, by name"""


def difference(
    before: OpenRelease, after: OpenRelease, store: Store, queries: Sequence[str] = (), examples: int = 3
) -> Difference:
    """Compare two releases below one root, with a bucket of each key table in memory at a time.

    Args:
        before: the earlier release.
        after: the later release.
        store: store of both.
        queries: texts that are searched in both releases, besides the canary texts.
        examples: largest number of example rows of each kind.

    Raises:
        DataError: a table of rows, or the corpus record, of a release is missing or damaged.
    """
    manifests = before.manifest, after.manifest
    return Difference(
        *manifests,
        rows=_compare_rows(store, *manifests, examples),
        drift=measure_drift(store, *manifests),
        answers=tuple(_compare_answers(before, after, store, queries)),
        settings=differing_settings(*manifests),
        gates=pair_values(*(_gate_values(each) for each in manifests)),
    )


def _gate_values(manifest: ReleaseManifest) -> dict[str, float | None]:
    return {name: gate.value for name, gate in manifest.gates.items()}


def _compare_answers(
    before: OpenRelease, after: OpenRelease, store: Store, queries: Sequence[str]
) -> Iterator[ComparedAnswers]:
    """Compare the answers to longer canary texts, whose vectors both releases store, and to `queries`."""
    earlier, later = (load_canary_vectors(release.manifest, store) for release in (before, after))
    if earlier is not None and later is not None and len(earlier) == len(later) == len(CANARIES):
        # encoders of word vectors give some canary texts the zero vector
        long_enough = np.array([not is_short(text) for text in CANARIES])
        usable = np.flatnonzero(long_enough & earlier.any(axis=1) & later.any(axis=1))
        yield from map(
            ComparedAnswers,
            [CANARIES[row] for row in usable],
            _nearest_ids(before, earlier[usable]),
            _nearest_ids(after, later[usable]),
        )
    if queries:
        yield from map(
            ComparedAnswers,
            queries,
            _nearest_ids(before, before.encode(queries)),
            _nearest_ids(after, after.encode(queries)),
        )


def _nearest_ids(release: OpenRelease, vectors: np.ndarray) -> list[tuple[str, ...]]:
    """Return the ids of the rows nearest to each of the query vectors (q, d), best first."""
    found = release.search(vectors, _HITS)
    ids, query_numbers = found["id"].cast(pa.string()).to_numpy(), found["query"].to_numpy()
    return [tuple(ids[query_numbers == number]) for number in range(len(vectors))]


def _compare_rows(
    store: Store, before: ReleaseManifest, after: ReleaseManifest, examples: int
) -> RowDifferences:
    """Count the rows of each kind, and read the texts of the first `examples` rows of each kind."""
    counts = dict.fromkeys(("new", "changed", "kept", "deleted", "unchanged"), 0)
    picked: dict[str, list[dict[str, Any]]] = {kind: [] for kind in counts if kind != "unchanged"}
    for tables in live_rows_by_bucket(store, (before, after), _COLUMNS):
        for kind, rows in _rows_by_kind(*map(_with_string_ids, tables)).items():
            counts[kind] += rows.num_rows
            if kind in picked:
                picked[kind] += rows.slice(0, examples - len(picked[kind])).to_pylist()
    shown = {
        kind: tuple(_example(store, before, after, row) for row in rows) for kind, rows in picked.items()
    }
    return RowDifferences(counts, shown)


def _example(store: Store, before: ReleaseManifest, after: ReleaseManifest, row: dict[str, Any]) -> Example:
    """Read the texts of a row. Without release.show_deleted_texts, only the newer release's text is shown."""
    example = Example(row["id"], _text_at(store, before, row["before"]), _text_at(store, after, row["after"]))
    newer, older = (after, "before") if after.release > before.release else (before, "after")
    is_shown = newer.settings.get("release", {}).get("show_deleted_texts", False)
    if is_shown or example.before == example.after or getattr(example, older) is None:
        return example
    return example._replace(**{older: ""})


def _with_string_ids(rows: pa.Table) -> pa.Table:
    return rows.set_column(0, "id", rows["id"].cast(pa.string())).combine_chunks()


def _rows_by_kind(before: pa.Table, after: pa.Table) -> dict[str, pa.Table]:
    """Return tables of (id, address before, address after) by kind of difference."""
    positions = pc.index_in(after["id"], value_set=before["id"]).combine_chunks()
    in_both = positions.is_valid()
    later, earlier = after.filter(in_both), before.take(positions.drop_null())  # rows in both, aligned
    text_differs = pc.not_equal(later["text_key"], earlier["text_key"])
    old, new = earlier["carried"], later["carried"]
    kept_differs = pc.or_(  # null equals null
        pc.fill_null(pc.not_equal(old, new), False), pc.xor(old.is_null(), new.is_null())
    )
    pairs = pa.table({"id": later["id"], "before": earlier["address"], "after": later["address"]})
    added = after.filter(pc.invert(in_both))
    deleted = before.filter(pc.invert(pc.is_in(before["id"], value_set=after["id"])))
    return {
        "new": pa.table(
            {"id": added["id"], "before": pa.nulls(len(added), pa.int64()), "after": added["address"]}
        ),
        "changed": pairs.filter(text_differs),
        "kept": pairs.filter(pc.and_(pc.invert(text_differs), kept_differs)),
        "deleted": pa.table(
            {"id": deleted["id"], "before": deleted["address"], "after": pa.nulls(len(deleted), pa.int64())}
        ),
        "unchanged": pairs.filter(pc.invert(pc.or_(text_differs, kept_differs))),
    }


def _text_at(store: Store, manifest: ReleaseManifest, address: int | None) -> str | None:
    """Read the text at an address; None without an address, or if its unit is missing."""
    if address is None:
        return None
    try:
        row = texts_at(store, manifest.units, [address]).get(address)
    except FileNotFoundError:
        return None
    return row.text if row else None
