"""Rewrite the manifests of releases: units, dead rows, moments, index and counts without the erased rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.evaluate.relevance import RelevanceScores
from pipeline.flows.context import map_in_order
from pipeline.flows.erase.corpora import (
    FILTERED_ERASED,
    Erasure,
    RewrittenTables,
    rewrite_corpus,
    store_corpus,
)
from pipeline.flows.erase.tables import RemovedLines, sum_removed
from pipeline.flows.erase.units import RewriteUnit, RewrittenUnit, UnitToRewrite
from pipeline.flows.index.erase import erase_from_index
from pipeline.flows.night.candidate import LiveUnits
from pipeline.flows.transform.erase import erase_from_moments
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit, store_units
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import FILTERED, Corpus
from pipeline.store.records.write_once import store_by_content
from pipeline.store.releases.manifest import ReleaseManifest


@dataclass(frozen=True)
class StoredRelease:
    """A release with its corpus."""

    manifest: ReleaseManifest
    corpus: Corpus


@dataclass(frozen=True)
class RewrittenUnits:
    """The units that replace those of all releases."""

    corpus: Mapping[str, FileRef]
    """by the path of the old corpus unit"""
    vectors: Mapping[tuple[str, str], VectorUnit]
    """by the paths of the old corpus unit and of the old unit of vectors; the ordinal is of any release"""

    old: tuple[VectorUnit, ...]
    """the old units of vectors, each file once"""

    def replace(self, unit: VectorUnit) -> VectorUnit:
        """Return the unit that replaces a unit of vectors, or the unit itself."""
        new = self.vectors.get((unit.corpus.path, unit.path))
        if new is None:
            return unit
        return new.model_copy(update={"ordinal": unit.ordinal, "counts": unit.counts})


def rewrite_units(erasure: Erasure, releases: Sequence[StoredRelease]) -> RewrittenUnits:
    """Rewrite all units with erased rows, each once, on the workers."""
    by_corpus = dict[str, dict[str, VectorUnit]]()
    for release in releases:
        for unit in release.manifest.units:
            if unit.corpus.path in erasure.rows.by_unit:
                by_corpus.setdefault(unit.corpus.path, {})[unit.path] = unit
    items = []
    for path, units in by_corpus.items():
        vectors = tuple(units.values())
        items.append(UnitToRewrite(vectors[0].corpus, vectors, erasure.rows.by_unit[path].rows))
    rewritten: Sequence[RewrittenUnit] = map_in_order(
        erasure.context, RewriteUnit(erasure.context.store), items
    )
    return RewrittenUnits(
        corpus={item.corpus.path: new.corpus for item, new in zip(items, rewritten, strict=True)},
        vectors={
            (item.corpus.path, old.path): vector
            for item, new in zip(items, rewritten, strict=True)
            for old, vector in zip(item.vectors, new.vectors, strict=True)
        },
        old=tuple(unit for item in items for unit in item.vectors),
    )


def rewrite_release(
    erasure: Erasure, release: StoredRelease, units: RewrittenUnits, tables: RewrittenTables
) -> ReleaseManifest | None:
    """Store the files of a release without the erased rows, and return its manifest.

    Returns the same manifest if nothing of the release is erased, and None if no row of it remains.
    """
    store, old = erasure.context.store, release.manifest
    corpus, removed = rewrite_corpus(erasure, release.corpus, units.corpus, tables)
    if corpus == release.corpus:
        return old
    if not corpus.units:
        return None
    ordinals = {unit.ordinal for unit in corpus.units}
    live = LiveUnits(
        tuple(units.replace(unit) for unit in old.units if unit.ordinal in ordinals),
        DeadRows(store, corpus.dead),
    )
    if not live.rows:
        return None
    work = f"erasures/{erasure.id}/work"
    indexed = erase_from_index(erasure.context, old, erasure.addresses, work, units.old)
    new = old.model_copy(
        update={
            "units": live.units,
            "dead": corpus.dead,
            "corpus": store_corpus(erasure, corpus),
            "rows": live.rows,
            "numerics": live.numerics() if live.rows != old.rows else old.numerics,
            "counts": _counts(erasure, release, live, removed),
            "index": indexed.index,
            "ids": indexed.ids,
            "tombstones": indexed.tombstones,
            "relevance": _relevance(erasure, old.relevance),
        }
    )
    new = erase_from_moments(erasure.context, old, new, erasure.addresses, work)
    return new.model_copy(update={"units": store_units(store, tuple(new.units))})


def _relevance(erasure: Erasure, scores: FileRef | None) -> FileRef | None:
    """Store the scores of the queries of gates.relevance without those that name an erased row."""
    if scores is None:
        return None
    store = erasure.context.store
    stored = RelevanceScores.from_bytes(scores.read(store))
    kept = stored.without(erasure.rows.ids, erasure.rows.texts)
    if kept is None:
        return None
    if len(kept.keys) == len(stored.keys):
        return scores
    return store_by_content(store, kept.to_bytes(), "relevance/scores", ".parquet", len(kept.keys))


def _counts(
    erasure: Erasure, release: StoredRelease, live: LiveUnits, removed: Sequence[RemovedLines]
) -> dict[str, int]:
    """Return the counts of a release with its live rows that are erased counted as filtered."""
    sums, counts = sum_removed(removed), dict(release.manifest.counts)
    if not sums["lines"]:
        return counts
    store, old = erasure.context.store, release.manifest
    before = LiveUnits(tuple(old.units), DeadRows(store, old.dead))
    lost, left = before.count_quarantined(store), live.count_quarantined(store)
    for reason, count in lost.items():
        counts[reason] = counts.get(reason, 0) - count + left.get(reason, 0)
    is_chunked = release.corpus.is_chunked
    documents = sums["live_documents"]
    duplicates = sums["documents"] - documents
    counts["quarantined"] -= duplicates + sum(lost.values()) - sum(left.values())
    if duplicates:
        counts["quarantined_duplicate_id"] -= duplicates
    counts["total"] -= sums["live_lines"] - documents
    counts[FILTERED] = counts.get(FILTERED, 0) + documents + duplicates
    counts[FILTERED_ERASED] = counts.get(FILTERED_ERASED, 0) + documents + duplicates
    if is_chunked:
        counts["documents"] -= documents
        counts["chunks"] -= sums["live_lines"]
    counts["reused"] = counts.get("reused", 0) - (old.rows - live.rows)
    return counts
