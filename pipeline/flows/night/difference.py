"""The difference between two releases: rows by id, settings, gates, drift, and answers to the same queries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.night.gates import CANARIES, canary_of
from pipeline.index.search import OpenRelease
from pipeline.log import say
from pipeline.stats.drift import Drift, drift
from pipeline.stats.moments import Moments
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.units import Corpus, FileRef
from pipeline.text.corpus.keys import id_hashes, read_bucket

_K = 10  # answers that are compared
_LIVE = ("id", "text_key", "carried", "address")


class Example(NamedTuple):
    """One row. before, after: its text in either release; None where it is not there."""

    id: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Rows:
    """Live rows of the later release against those of the earlier one, by id, with the first of each kind.

    changed: another text; kept: the same text and another value in a kept column.
    """

    counts: dict[str, int]
    examples: dict[str, tuple[Example, ...]]


class ComparedAnswers(NamedTuple):
    """Ids of the nearest rows, best first, in both releases."""

    query: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def shared(self) -> int:
        return len(set(self.before) & set(self.after))


@dataclass(frozen=True)
class Difference:
    """rows, drift: None where files that they need are missing or, for drift, the spaces differ."""

    before: ReleaseManifest
    after: ReleaseManifest
    rows: Rows
    drift: Drift | None
    answers: tuple[ComparedAnswers, ...]
    settings: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    gates: dict[str, tuple[float | int | None, float | int | None]] = field(default_factory=dict)


def difference(
    before: OpenRelease, after: OpenRelease, store: Store, queries: Sequence[str] = (), examples: int = 3
) -> Difference:
    """Compare two releases below one root; a bucket of each key table is in memory at a time."""
    was, is_ = before.manifest, after.manifest
    gates = {**was.gates, **is_.gates}
    return Difference(
        before=was,
        after=is_,
        rows=_rows(store, was, is_, examples),
        drift=_drift(store, was, is_),
        answers=(*_canaries(before, after, store), *_asked(before, after, queries)),
        settings=_changed_settings(was.settings, is_.settings),
        gates={name: (_value(was, name), _value(is_, name)) for name in gates},
    )


def _value(manifest: ReleaseManifest, gate: str) -> float | int | None:
    return manifest.gates[gate].value if gate in manifest.gates else None


def _changed_settings(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    was, is_ = dict(_flat(before)), dict(_flat(after))
    names = sorted({*was, *is_})
    return {name: (was.get(name), is_.get(name)) for name in names if was.get(name) != is_.get(name)}


def _flat(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their full names: whiten.k."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _drift(store: Store, before: ReleaseManifest, after: ReleaseManifest) -> Drift | None:
    if before.moments is None or after.moments is None or before.space_id != after.space_id:
        return None
    try:
        read = [each.read(store) for each in (before.moments, after.moments)]
    except FileNotFoundError as error:
        say(f"the drift is not measured: {error.filename or error} is gone")
        return None
    was, is_ = map(Moments.from_bytes, read)
    return drift(was, is_) if was.count > 1 and is_.count else None


def _canaries(before: OpenRelease, after: OpenRelease, store: Store) -> Iterator[ComparedAnswers]:
    """Answers to the texts that every night encodes, by the vectors that each release keeps of them."""
    kept = [canary_of(release.manifest, store) for release in (before, after)]
    vectors = [each for each in kept if each is not None and len(each) == len(CANARIES)]
    if len(vectors) < len(kept):
        return
    usable = np.flatnonzero(
        vectors[0].any(axis=1) & vectors[1].any(axis=1)
    )  # word vectors know no word of some
    found = [_nearest(release, each[usable]) for release, each in zip((before, after), vectors, strict=True)]
    for number, row in enumerate(usable.tolist()):
        yield ComparedAnswers(CANARIES[row], found[0][number], found[1][number])


def _asked(before: OpenRelease, after: OpenRelease, queries: Sequence[str]) -> Iterator[ComparedAnswers]:
    if queries:
        found = [_nearest(release, release.encode(queries)) for release in (before, after)]
        yield from (ComparedAnswers(*each) for each in zip(queries, *found, strict=True))


def _nearest(release: OpenRelease, vectors: np.ndarray) -> list[tuple[str, ...]]:
    found = release.search(vectors, _K)
    ids = np.array(found["id"].cast(pa.string()).to_pylist(), dtype=object)
    query = found["query"].to_numpy()
    return [tuple(ids[query == number]) for number in range(len(vectors))]


def _rows(store: Store, before: ReleaseManifest, after: ReleaseManifest, examples: int) -> Rows:
    counts = dict.fromkeys(("new", "changed", "kept", "deleted", "unchanged"), 0)
    picked: dict[str, list[tuple[str, int | None, int | None]]] = {
        name: [] for name in counts if name != "unchanged"
    }
    for was, is_ in _buckets(store, before, after):
        for name, rows in _compared(was, is_).items():
            counts[name] += rows.num_rows
            if name in picked and (room := examples - len(picked[name])) > 0:
                picked[name] += map(tuple, (line.values() for line in rows.slice(0, room).to_pylist()))
    texts = _Texts(store, (before, after))
    shown = {
        name: tuple(Example(id_, texts.of(0, old), texts.of(1, new)) for id_, old, new in lines)
        for name, lines in picked.items()
    }
    return Rows(counts, shown)


def _buckets(
    store: Store, before: ReleaseManifest, after: ReleaseManifest
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Live rows of both releases whose ids fall into one bucket."""
    tables = [_corpus(store, manifest).keys for manifest in (before, after)]
    parts = max(map(len, tables))
    for part in range(parts):
        was, is_ = (_live(_bucket(store, keys, part, parts)) for keys in tables)
        yield was, is_


def _bucket(store: Store, keys: Sequence[FileRef], part: int, parts: int) -> pa.Table | None:
    try:
        return read_bucket(store, keys, part, parts, id_hashes)
    except FileNotFoundError as error:
        remedy = "restore it, or run manta nightly, which makes that of the current release again"
        raise DataError(
            str(error.filename or error), "a key table of the release", "no such file", remedy
        ) from None


def _corpus(store: Store, manifest: ReleaseManifest) -> Corpus:
    where = store.uri_of(manifest.corpus.path)
    try:
        corpus = Corpus.read(store, manifest.corpus)
    except FileNotFoundError:
        raise DataError(where, "the corpus record of the release", "no such file", "restore it") from None
    if not corpus.keys:
        found, remedy = "none", "it was published by a version that kept none: compare later releases"
        raise DataError(f"release {manifest.release}", "a table of its rows", found, remedy)
    return corpus


def _live(table: pa.Table | None) -> pa.Table:
    assert table is not None
    live = table.filter(table["address"].is_valid()).select(_LIVE)
    return live.set_column(0, "id", live["id"].cast(pa.string())).combine_chunks()


def _compared(was: pa.Table, is_: pa.Table) -> dict[str, pa.Table]:
    """Tables of (id, address before, address after) by what became of the rows."""
    place = pc.index_in(is_["id"], value_set=was["id"]).combine_chunks()
    there = place.is_valid()
    both, then = is_.filter(there), was.take(place.drop_null())
    text = pc.not_equal(both["text_key"], then["text_key"])
    kept = _differs(both["carried"], then["carried"])
    pairs = pa.table([both["id"], then["address"], both["address"]], names=["id", "before", "after"])
    fresh, gone = (
        is_.filter(pc.invert(there)),
        was.filter(pc.invert(pc.is_in(was["id"], value_set=is_["id"]))),
    )
    return {
        "new": pa.table(
            [fresh["id"], pa.nulls(len(fresh), pa.int64()), fresh["address"]], names=pairs.column_names
        ),
        "changed": pairs.filter(text),
        "kept": pairs.filter(pc.and_(pc.invert(text), kept)),
        "deleted": pa.table(
            [gone["id"], gone["address"], pa.nulls(len(gone), pa.int64())], names=pairs.column_names
        ),
        "unchanged": pairs.filter(pc.invert(pc.or_(text, kept))),
    }


def _differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a mask of the rows at which two columns differ; null equals null."""
    one_is_null = pc.xor(left.is_null(), right.is_null())
    return pc.or_(pc.fill_null(pc.not_equal(left, right), False), one_is_null)


class _Texts:
    """Texts of rows by address, a unit at a time."""

    def __init__(self, store: Store, manifests: tuple[ReleaseManifest, ReleaseManifest]) -> None:
        self._store = store
        self._units = [{unit.ordinal: unit.corpus for unit in manifest.units} for manifest in manifests]

    def of(self, which: int, address: int | None) -> str | None:
        """The text in the first (0) or second (1) release; None where there is none, or its unit is gone."""
        if address is None or (unit := self._units[which].get(address >> 32)) is None:
            return None
        try:
            column = pq.read_table(unit.open(self._store), columns=["text"])["text"]
        except FileNotFoundError:
            return None
        return str(column[address & 0xFFFFFFFF].as_py())
