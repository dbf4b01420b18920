"""The candidate of a night, as the manifest that would be published."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from pipeline.flows.encode.unit import WorkerStats, record_path
from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.night.previous import PreviousRelease
from pipeline.flows.rows import PlacedUnit
from pipeline.flows.run import Run
from pipeline.flows.transform.decide import Decision
from pipeline.log import packages
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import Choice, EncoderFiles, ReleaseManifest, ReleaseUnit
from pipeline.store.stored import FileRef
from pipeline.store.units import Corpus, Manifest, total
from pipeline.text.corpus.corpus_record import record_path as corpus_path
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
_KEPT = ("control_characters", "surrogates_replaced", "kept_values_dropped", "bad_files", "skipped_files")


@dataclass(frozen=True)
class Candidate:
    """A built release before its gates, with further values for the report."""

    manifest: ReleaseManifest
    corpus: Corpus
    vectors: Manifest
    encode_stats: WorkerStats
    decision: Decision
    built: BuiltIndex
    folder: EncoderFolder


@dataclass(frozen=True)
class Live:
    """The units of a release, in the corpus's order, and their dead rows."""

    placed: tuple[PlacedUnit, ...]
    dead: Dead

    def units(self) -> Iterator[tuple[PlacedUnit, np.ndarray, np.ndarray]]:
        """Yield each unit, its dead rows that have a vector, and its live rows that have none."""
        for placed in self.placed:
            gone, dropped = self.dead.rows_of(placed.ordinal), np.asarray(placed.unit.dropped, dtype=np.int64)
            yield (
                placed,
                np.setdiff1d(gone, dropped, assume_unique=True),
                np.setdiff1d(dropped, gone, assume_unique=True),
            )

    @property
    def rows(self) -> int:
        """Number of live rows with a vector."""
        return sum(placed.unit.rows - len(gone) for placed, gone, _ in self.units())

    def numerics(self) -> dict[str, int]:
        """Count live rows by the numerics of their vectors.

        Dead rows are subtracted from the rows that were encoded for their unit, not from copied ones.
        """
        found: Counter[str] = Counter()
        for placed, gone, _ in self.units():
            unit = placed.unit
            found.update(unit.copied)
            found[unit.numerics_id or ""] += unit.rows - len(gone) - sum(unit.copied.values())
        return {name: count for name, count in found.items() if count > 0}

    def set_aside(self, store: Store) -> dict[str, int]:
        """Count the live rows that have no vector, by reason."""
        found: Counter[str] = Counter()
        for placed, _, waiting in self.units():
            if len(waiting) and (file := placed.unit.quarantine) is not None:
                reasons = pq.read_table(file.open(store), columns=["reason"])["reason"].to_pylist()
                by_row = dict(zip(placed.unit.dropped, reasons, strict=True))  # both in the order of the rows
                found.update(f"quarantined_{by_row[row]}" for row in waiting.tolist())
        return dict(sorted(found.items()))


class CandidateParts(NamedTuple):
    """Everything that a candidate's manifest describes."""

    corpus: Corpus
    live: Live
    decision: Decision
    built: BuiltIndex
    encoder: EncoderFiles
    choices: tuple[Choice, ...]


def make_manifest(run: Run, previous: PreviousRelease, made: CandidateParts) -> ReleaseManifest:
    """Describe the candidate; its gates are added when it has been judged."""
    corpus, decision, index = made.corpus, made.decision, made.built
    content = corpus.to_json()
    return ReleaseManifest(
        parent=previous.release.release if previous.release else None,
        space_id=made.live.placed[0].unit.space_id or "",
        transform_id=decision.transform.transform_id if decision.transform else None,
        transform=decision.ref if decision.used else None,
        whitening=decision.whitened(),
        moments=decision.moments_ref,
        numerics=made.live.numerics(),
        rows=made.live.rows,
        units=_units(corpus, made.live.placed, run.job),
        next_ordinal=corpus.next_ordinal,
        dead=corpus.dead,
        tombstones=index.tombstones,
        index=index.index_files(),
        ids=index.ids,
        encoder=made.encoder,
        corpus=FileRef(
            path=corpus_path(corpus.id),
            sha256=sha256(content).hexdigest(),
            rows=corpus.rows,
            bytes=len(content),
        ),
        choices=made.choices,
        counts=counts(corpus, made.live, previous, run.store),
        settings=run.job.model_dump(mode="json"),
        packages=packages(*PACKAGES),
    )


def _units(corpus: Corpus, placed: Sequence[PlacedUnit], job: Job) -> tuple[ReleaseUnit, ...]:
    return tuple(
        ReleaseUnit(
            ordinal=place.ordinal,
            path=place.unit.path,
            rows=place.unit.rows,
            bytes=place.unit.bytes,
            sha256=place.unit.sha256,
            space_id=place.unit.space_id or "",
            numerics_id=place.unit.numerics_id or "",
            copied=place.unit.copied,
            corpus=FileRef(path=text.path, sha256=text.sha256, rows=text.rows, bytes=text.bytes),
            dropped=place.unit.dropped,
            moments=place.unit.moments,
            record=record_path(place.unit.space_id or "", text, job.encode, job.corpus.id),
            quarantine=place.unit.quarantine,
        )
        for place, text in zip(placed, corpus.units, strict=True)
    )


def counts(corpus: Corpus, live: Live, previous: PreviousRelease, store: Store) -> dict[str, int]:
    """Count the rows of the night by their fate: total = live rows + quarantined.

    new, changed and deleted compare with the previous release, by id. encoded counts live rows that were
    encoded for this release; the others are reused. truncated, tokens and text_tokens (tokens without special
    ones) are of tonight's units, script_... of all units.
    """
    known = {unit.path for unit in previous.release.units} if previous.release else set()
    fresh = [placed.unit for placed in live.placed if placed.unit.path not in known]
    encoded = sum(unit.rows - sum(unit.copied.values()) for unit in fresh)
    tonight, aside = total(unit.counts for unit in fresh), live.set_aside(store)
    found = {
        "total": corpus.counts["rows"],
        "new": corpus.changes.new,
        "changed": corpus.changes.changed,
        "deleted": corpus.changes.deleted,
        "reused": live.rows - encoded,
        "encoded": encoded,
        "quarantined": corpus.counts["quarantined"] + sum(aside.values()),
        "skipped": corpus.counts.get("skipped", 0),
        "truncated": tonight.get("truncated", 0),
        "tokens": tonight.get("tokens", 0),
    }
    found |= token_counts([placed.unit.counts for placed in live.placed], [unit.counts for unit in fresh])
    return found | {
        name: count
        for name, count in total((corpus.counts, aside)).items()
        if name.startswith("quarantined_") or name in _KEPT
    }
