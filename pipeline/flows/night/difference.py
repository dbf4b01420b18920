"""The difference between two releases: rows, settings, gates, drift, and answers to the same queries."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.flows.night.asked import texts_at
from pipeline.flows.night.gates import CANARIES, canary_of
from pipeline.index.search import OpenRelease
from pipeline.log import say
from pipeline.stats.drift import Drift, drift
from pipeline.stats.moments import Moments
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.stored import FileRef
from pipeline.store.units import Corpus
from pipeline.text.corpus.keys import id_hashes, read_bucket

_K = 10  # answers that are compared
_LIVE = ("id", "text_key", "carried", "address")


class Example(NamedTuple):
    """One row, with its text before and after; None if it is not in that release."""

    id: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Rows:
    """Live rows of the later release compared with those of the earlier one, by id.

    Attributes:
        counts: number of rows that are new, changed (another text), kept (the same text and another value in
            a kept column), deleted, unchanged.
        examples: the first rows of each kind but the last.
    """

    counts: dict[str, int]
    examples: dict[str, tuple[Example, ...]]


class ComparedAnswers(NamedTuple):
    """Ids of the rows nearest to a query, best first, in both releases."""

    query: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def shared(self) -> int:
        """Number of ids in both."""
        return len(set(self.before) & set(self.after))


@dataclass(frozen=True)
class Difference:
    """The difference between two releases.

    Attributes:
        drift: None if the spaces differ or moments are missing.
        settings: values of the settings that differ, by their full names.
        gates: values of the gates of either release.
    """

    before: ReleaseManifest
    after: ReleaseManifest
    rows: Rows
    drift: Drift | None
    answers: tuple[ComparedAnswers, ...]
    settings: dict[str, tuple[Any, Any]]
    gates: dict[str, tuple[Any, Any]]


def difference(
    before: OpenRelease, after: OpenRelease, store: Store, queries: Sequence[str] = (), examples: int = 3
) -> Difference:
    """Compare two releases below one root, with a bucket of each key table in memory at a time.

    Raises:
        DataError: a table of rows, or the corpus record, of a release is missing or damaged.
    """
    was, is_ = before.manifest, after.manifest
    settings = _paired(*(dict(_flat(each.settings)) for each in (was, is_)))
    return Difference(
        before=was,
        after=is_,
        rows=_rows(store, was, is_, examples),
        drift=_drift(store, was, is_),
        answers=tuple(_answers(before, after, store, queries)),
        settings={name: (old, new) for name, (old, new) in sorted(settings.items()) if old != new},
        gates=_paired(*({name: gate.value for name, gate in each.gates.items()} for each in (was, is_))),
    )


def _paired(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values of both by name; None where one has none."""
    return {name: (before.get(name), after.get(name)) for name in {**before, **after}}


def _flat(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by their full names, such as whiten.k."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _drift(store: Store, before: ReleaseManifest, after: ReleaseManifest) -> Drift | None:
    if before.moments is None or after.moments is None or before.space_id != after.space_id:
        return None
    try:
        was, is_ = (Moments.from_bytes(each.read(store)) for each in (before.moments, after.moments))
    except FileNotFoundError as error:
        say(f"the drift is not measured: {error.filename or error} is gone")
        return None
    return drift(was, is_) if was.count > 1 and is_.count else None


def _answers(
    before: OpenRelease, after: OpenRelease, store: Store, queries: Sequence[str]
) -> Iterator[ComparedAnswers]:
    """Compare the answers to the canary texts, by vectors that each release stored, and to the queries."""
    kept = [canary_of(release.manifest, store) for release in (before, after)]
    vectors = [each for each in kept if each is not None and len(each) == len(CANARIES)]
    if len(vectors) == len(kept):
        # Word vectors give the zero vector to some of them.
        usable = np.flatnonzero(vectors[0].any(axis=1) & vectors[1].any(axis=1))
        yield from _compared_answers(
            [CANARIES[row] for row in usable], (before, after), [each[usable] for each in vectors]
        )
    if queries:
        yield from _compared_answers(
            queries, (before, after), [each.encode(queries) for each in (before, after)]
        )


def _compared_answers(
    queries: Sequence[str], releases: Sequence[OpenRelease], vectors: Sequence[np.ndarray]
) -> Iterator[ComparedAnswers]:
    nearest = []
    for release, asked in zip(releases, vectors, strict=True):
        found = release.search(asked, _K)
        ids, query = found["id"].cast(pa.string()).to_numpy(), found["query"].to_numpy()
        nearest.append([tuple(ids[query == number]) for number in range(len(asked))])
    return map(ComparedAnswers, queries, *nearest)


def _rows(store: Store, before: ReleaseManifest, after: ReleaseManifest, examples: int) -> Rows:
    counts = dict.fromkeys(("new", "changed", "kept", "deleted", "unchanged"), 0)
    picked: dict[str, list[dict[str, Any]]] = {name: [] for name in counts if name != "unchanged"}
    for was, is_ in _buckets(store, before, after):
        for name, rows in _compared_rows(was, is_).items():
            counts[name] += rows.num_rows
            if name in picked:
                picked[name] += rows.slice(0, examples - len(picked[name])).to_pylist()
    return Rows(
        counts,
        {
            name: tuple(
                Example(row["id"], _text(store, before, row["before"]), _text(store, after, row["after"]))
                for row in rows
            )
            for name, rows in picked.items()
        },
    )


def _buckets(
    store: Store, before: ReleaseManifest, after: ReleaseManifest
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield the live rows of both releases whose ids are in one bucket."""
    tables = [_key_tables(store, manifest) for manifest in (before, after)]
    parts = max(map(len, tables))
    for part in range(parts):
        try:
            was, is_ = (read_bucket(store, keys, part, parts, id_hashes) for keys in tables)
        except FileNotFoundError as error:
            raise DataError(
                str(error.filename or error),
                "a key table of the release",
                "no such file",
                "restore it, or run manta nightly, which makes that of the current release again",
            ) from None
        yield _live(was), _live(is_)


def _key_tables(store: Store, manifest: ReleaseManifest) -> tuple[FileRef, ...]:
    try:
        corpus = Corpus.read(store, manifest.corpus)
    except FileNotFoundError:
        raise DataError(
            store.uri_of(manifest.corpus.path),
            "the corpus record of the release",
            "no such file",
            "restore it",
        ) from None
    if not corpus.keys:
        raise DataError(
            f"release {manifest.release}",
            "a table of its rows",
            "none",
            "it was published by a version that kept none: compare later releases",
        )
    return corpus.keys


def _live(table: pa.Table | None) -> pa.Table:
    assert table is not None
    live = table.filter(table["address"].is_valid()).select(_LIVE)
    return live.set_column(0, "id", live["id"].cast(pa.string())).combine_chunks()


def _compared_rows(was: pa.Table, is_: pa.Table) -> dict[str, pa.Table]:
    """Return tables of (id, address before, address after) by kind of difference."""
    position = pc.index_in(is_["id"], value_set=was["id"]).combine_chunks()
    in_both = position.is_valid()
    both, then = is_.filter(in_both), was.take(position.drop_null())
    text = pc.not_equal(both["text_key"], then["text_key"])
    left, right = both["carried"], then["carried"]
    # Null equals null.
    kept = pc.or_(pc.fill_null(pc.not_equal(left, right), False), pc.xor(left.is_null(), right.is_null()))
    pairs = pa.table({"id": both["id"], "before": then["address"], "after": both["address"]})
    new = is_.filter(pc.invert(in_both))
    gone = was.filter(pc.invert(pc.is_in(was["id"], value_set=is_["id"])))
    return {
        "new": pa.table({"id": new["id"], "before": pa.nulls(len(new), pa.int64()), "after": new["address"]}),
        "changed": pairs.filter(text),
        "kept": pairs.filter(pc.and_(pc.invert(text), kept)),
        "deleted": pa.table(
            {"id": gone["id"], "before": gone["address"], "after": pa.nulls(len(gone), pa.int64())}
        ),
        "unchanged": pairs.filter(pc.invert(pc.or_(text, kept))),
    }


def _text(store: Store, manifest: ReleaseManifest, address: int | None) -> str | None:
    """Read the text at an address; None without an address, or if its unit is missing."""
    if address is None:
        return None
    try:
        _, text = texts_at(store, manifest.units, [address]).get(address, (None, None))
    except FileNotFoundError:
        return None
    return text
