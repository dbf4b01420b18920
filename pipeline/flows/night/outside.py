"""Recall on texts that people ask, beside recall on rows of the corpus.

An index that compresses finds less for the former.
"""

from dataclasses import dataclass
from functools import reduce
from itertools import islice

import numpy as np

from pipeline.errors import DataError, SpaceMismatch
from pipeline.flows.encode.probe import encode_texts
from pipeline.flows.index.build import live_units, map_shards
from pipeline.flows.index.measure_tasks import ScanTruth
from pipeline.flows.index.records import load_queries, load_truth, store_queries
from pipeline.flows.rows import LiveRows, placed_units
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.log import say
from pipeline.models.folder.folder import open_folder
from pipeline.post import Affine, load_transform
from pipeline.settings import GateSettings
from pipeline.store.base import Store
from pipeline.store.manifest import OUTSIDE_RECALL, Gate, ReleaseManifest
from pipeline.store.stored import FileRef
from pipeline.text.corpus.normalize import normalize
from pipeline.text.corpus.queries import read_texts

_MOST = 1_000  # queries, as many as rows are asked by default; recall is then known to two digits


def outside_queries(gates: GateSettings) -> tuple[str, ...]:
    """Read the first thousand texts of `gates.queries` that are not blank; none if it is not set.

    Raises:
        DataError: the file has no texts.
    """
    if gates.queries is None:
        return ()
    texts = list(islice((text for text in read_texts(gates.queries) if text.strip()), _MOST))
    if not texts:
        raise DataError(
            f"gates.queries: {gates.queries}",
            "a text on each line",
            "none",
            "give the texts that people ask, or null",
        )
    return tuple(normalize(texts).to_pylist())


def outside_gates(run: Run, manifest: ReleaseManifest) -> dict[str, Gate]:
    """Return recall@10 of `gates.queries` as a gate that always passes; empty if it is not set.

    Raises:
        SpaceMismatch: the job's encoder is not that of the release.
    """
    job = run.job
    texts = outside_queries(job.gates)
    if not texts:
        return {}
    if (found := open_folder(job.encoder).space_id) != manifest.space_id:
        raise SpaceMismatch(
            "gates.queries",
            f"an encoder of space {manifest.space_id}",
            f"space {found}",
            "set encoder to that of the release, or gates.queries to null",
        )
    vectors = encode_texts(run, texts, query=True)
    known = vectors[np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)]
    if not len(known):
        say(
            f"gates.queries: the encoder knows none of the {len(texts):,} texts in {job.gates.queries}; "
            "their recall is not measured"
        )
        return {}
    value, low, high = _recall(run, manifest, known)
    sentence = (
        f"recall@10 of {len(known):,} texts of gates.queries is {value:.4f} (95 % interval {low:.4f} to "
        f"{high:.4f}): reported only, the gate asks for rows of the corpus"
    )
    return {OUTSIDE_RECALL: Gate(value=value, threshold=None, passed=True, sentence=sentence)}


def affine_of(store: Store, release: ReleaseManifest) -> Affine | None:
    """Load the release's transform as an affine map; None without any."""
    return load_transform(release.transform.read(store)).affine() if release.transform else None


def _recall(run: Run, manifest: ReleaseManifest, vectors: np.ndarray) -> tuple[float, float, float]:
    """Return recall@10 of the release's index at its stored effort, with the ends of its 95 % interval.

    All rows are searched for the exact neighbours.
    """
    from pipeline.index.truth import OUTSIDE

    store = run.store
    with store.scratch() as scratch:
        queries = store_queries(
            store, np.full(len(vectors), OUTSIDE, dtype=np.int64), vectors.astype(np.float32), scratch
        )
    source = LiveRows(store, manifest.space_id, run.job.corpus.id, manifest.dead)
    units, _ = live_units(run.workers, source, placed_units(manifest))
    size = run.workers.index_workers(run.job.cluster, len(manifest.units))
    pieces = map_shards(run, ScanTruth(source, affine_of(store, manifest), queries), units, size)
    return run.workers.run(RecallOf(store, manifest, queries), pieces, Pool(1))


@dataclass(frozen=True)
class RecallOf(PlainTask[tuple[FileRef, ...], tuple[float, float, float]]):
    """Compute the recall@10 of a release's index for stored queries, with the ends of its 95 % interval.

    The exact neighbours come in parts, one for each part of the rows.
    """

    store: Store
    manifest: ReleaseManifest
    queries: FileRef

    def work(self, pieces: tuple[FileRef, ...]) -> tuple[float, float, float]:
        from pipeline.index.parts import load_parts
        from pipeline.index.recall import recall
        from pipeline.index.truth import ExactTopK

        store, queries = self.store, load_queries(self.store, self.queries)
        truth = reduce(ExactTopK(queries).merge, (load_truth(store, piece) for piece in pieces))
        found = recall(
            load_parts(store, self.manifest.index.files, self.manifest.tombstones), queries, truth, (10,)
        )[10]
        return found.value, found.low, found.high
