"""The candidate of a night: a release that is built, with its manifest, before it is published."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from pipeline.flows.context import FlowContext
from pipeline.flows.encode.worker_stats import WorkerStats
from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.night.key_facts import DISTINCT_TEXTS
from pipeline.flows.night.previous_release import PreviousRelease
from pipeline.flows.night.user_queries import EncodedQueries
from pipeline.flows.transform.decide import Decision
from pipeline.log import packages
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit, store_units
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import (
    BAD_FILES,
    EMPTIED,
    FILTERED,
    LEFT_OUT,
    SKIPPED_FILES,
    UNMATCHED_IDS,
    VALUES_DROPPED,
    Corpus,
    StageRecord,
    sum_counts,
)
from pipeline.store.releases.manifest import Choice, EncoderFiles, ReleaseManifest
from pipeline.text.ingest.corpus_record import record_path as corpus_path
from pipeline.text.tokens.coverage import token_counts

PACKAGES = (
    "manta-embeddings",
    "ray",
    "torch",
    "transformers",
    "tokenizers",
    "pyarrow",
    "faiss-cpu",
    "faiss-gpu",
    "numpy",
    "fsspec",
    "s3fs",
)
# counts that are copied from the corpus to the release
_CORPUS_COUNTS = (
    "control_characters",
    "surrogates_replaced",
    VALUES_DROPPED,
    BAD_FILES,
    SKIPPED_FILES,
    EMPTIED,
    LEFT_OUT,
    FILTERED,
    UNMATCHED_IDS,
)


@dataclass(frozen=True)
class Candidate:
    """A release that is built but not published, with further values for its report."""

    manifest: ReleaseManifest
    corpus: Corpus
    vectors: StageRecord
    """the units of vectors, in the order of the corpus"""
    encode_stats: WorkerStats
    decision: Decision
    """decision about the transform"""
    built: BuiltIndex
    folder: EncoderFolder
    """folder of the encoder"""
    user_queries: EncodedQueries | None = None
    """the queries of gates.queries; None if it is not set"""


@dataclass(frozen=True)
class LiveUnits:
    """The units of a candidate, in the order of the corpus, and their dead rows."""

    units: tuple[VectorUnit, ...]
    dead: DeadRows

    def rows_of(self, unit: VectorUnit) -> int:
        """Return the number of the unit's live rows with a vector."""
        dropped = np.asarray(unit.dropped, dtype=np.int64)
        dead = np.setdiff1d(self.dead.rows_of(unit.ordinal), dropped, assume_unique=True)
        return unit.rows - len(dead)

    @property
    def rows(self) -> int:
        """Number of live rows with a vector."""
        return sum(map(self.rows_of, self.units))

    def numerics(self) -> dict[str, int]:
        """Count live rows by the numerics of their vectors.

        Dead rows are subtracted from the vectors that were encoded for their unit, not from copied vectors.
        """
        counts: Counter[str] = Counter()
        for unit in self.units:
            copied = unit.copied
            counts.update(copied)
            counts[unit.numerics_id] += self.rows_of(unit) - sum(copied.values())
        return {name: count for name, count in counts.items() if count > 0}

    def count_quarantined(self, store: Store) -> dict[str, int]:
        """Count the live rows that have no vector, by `quarantined_<reason>`."""

        def count(unit_and_rows: tuple[VectorUnit, np.ndarray]) -> Counter[str]:
            unit, rows = unit_and_rows
            if unit.quarantine is None:
                return Counter()
            reasons = pq.read_table(unit.quarantine.open(store), columns=["reason"])["reason"].to_pylist()
            by_row = dict(zip(unit.dropped, reasons, strict=True))  # both in the order of the rows
            return Counter(f"quarantined_{by_row[row]}" for row in rows.tolist())

        quarantined = [
            (unit, rows)
            for unit in self.units
            if len(rows := np.setdiff1d(unit.dropped, self.dead.rows_of(unit.ordinal)))
        ]
        return dict(sorted(sum_counts(in_threads(count, quarantined)).items()))


class CandidateParts(NamedTuple):
    """The parts of a candidate that its manifest describes."""

    corpus: Corpus
    distinct_texts: int
    live: LiveUnits
    decision: Decision
    built: BuiltIndex
    encoder: EncoderFiles
    choices: tuple[Choice, ...]


def make_manifest(context: FlowContext, previous: PreviousRelease, parts: CandidateParts) -> ReleaseManifest:
    """Return the manifest of a candidate, without gates, which are measured later."""
    corpus, decision, index = parts.corpus, parts.decision, parts.built
    content = corpus.to_json()
    return ReleaseManifest(
        parent=previous.release.release if previous.release else None,
        space_id=parts.live.units[0].space_id,
        transform_id=decision.transform.transform_id if decision.transform else None,
        transform=decision.ref if decision.used else None,
        whitening=decision.whitened(),
        moments=decision.moments_ref,
        numerics=parts.live.numerics(),
        rows=parts.live.rows,
        units=store_units(
            context.store,
            [
                unit.model_copy(update={"live_moments": live_moments})
                for unit, live_moments in zip(parts.live.units, decision.unit_moments, strict=True)
            ],
        ),
        next_ordinal=max(corpus.next_ordinal, previous.next_ordinal),
        dead=corpus.dead,
        tombstones=index.tombstones,
        index=index.index_files(),
        ids=index.ids,
        encoder=parts.encoder,
        corpus=FileRef.of(corpus_path(corpus.id), content, corpus.rows),
        choices=parts.choices,
        counts=count_rows(corpus, parts.live, previous, context.store)
        | {DISTINCT_TEXTS: parts.distinct_texts},
        settings=context.job.model_dump(mode="json"),
        packages=packages(*PACKAGES),
    )


def count_rows(corpus: Corpus, live: LiveUnits, previous: PreviousRelease, store: Store) -> dict[str, int]:
    """Count the rows of the night: total = live rows + quarantined rows + filtered rows.

    With corpus.chunk a live row is a chunk, but a document that was quarantined when it was read counts as
    one row; documents_read = documents (live) + quarantined and filtered documents.

    Rows are `new`, `changed` or `deleted` by comparison with the previous release, by id. Live rows are
    `encoded` for this release, or `reused`. `truncated`, `tokens` and `text_tokens` (tokens that are not
    special) are counted in tonight's units, `script_...` in all units.
    """
    previous_paths = {unit.path for unit in previous.release.units} if previous.release else set()
    new_units = [unit for unit in live.units if unit.path not in previous_paths]
    encoded = sum(unit.rows - sum(unit.copied.values()) for unit in new_units)
    tonight = sum_counts(unit.counts for unit in new_units)
    quarantined = live.count_quarantined(store)
    counts = {
        "total": corpus.counts["rows"],
        "new": corpus.changes.new,
        "changed": corpus.changes.changed,
        "deleted": corpus.changes.deleted,
        "reused": live.rows - encoded,
        "encoded": encoded,
        "quarantined": corpus.counts["quarantined"] + sum(quarantined.values()),
        "skipped": corpus.counts.get("skipped", 0),
        "truncated": tonight.get("truncated", 0),
        "tokens": tonight.get("tokens", 0),
    }
    if corpus.is_chunked:
        documents, chunks = corpus.counts["good"], corpus.counts["chunks"]
        counts |= {"documents_read": counts["total"], "documents": documents, "chunks": chunks}
        counts["total"] += chunks - documents
    counts |= token_counts([unit.counts for unit in live.units], [unit.counts for unit in new_units])
    return counts | {
        name: count
        for name, count in sum_counts((corpus.counts, quarantined)).items()
        if name.startswith(("quarantined_", "filtered_")) or name in _CORPUS_COUNTS
    }
