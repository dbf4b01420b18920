"""Measure recall@10 for the texts of gates.queries: queries of users, which are not rows of the corpus.

The gate of recall@10 uses rows of the corpus as queries. An index that compresses its vectors finds fewer of
the neighbours of other queries.
"""

from dataclasses import dataclass
from functools import reduce
from itertools import islice

import numpy as np

from pipeline.errors import DataError, SpaceMismatch
from pipeline.flows.encode.probe import encode_texts
from pipeline.flows.index.build import live_units
from pipeline.flows.index.measure_tasks import ScanTruth, scan_truth
from pipeline.flows.index.records import load_queries, load_truth, store_queries
from pipeline.flows.rows import LiveRows, placed_units
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.index.metrics import Proportion
from pipeline.log import say
from pipeline.models.folder.folder import open_folder
from pipeline.post import Affine, load_transform
from pipeline.settings import GateSettings
from pipeline.store.base import Store
from pipeline.store.manifest import USER_QUERY_RECALL, Gate, ReleaseManifest
from pipeline.store.stored import FileRef
from pipeline.text.corpus.normalize import normalize
from pipeline.text.corpus.queries import read_texts

_MAX_QUERIES = 1_000  # recall is then known to two digits


def read_user_queries(gates: GateSettings) -> tuple[str, ...]:
    """Read the first thousand texts of `gates.queries` that are not blank; none if it is not set.

    Raises:
        DataError: the file has no texts.
    """
    if gates.queries is None:
        return ()
    texts = list(islice((text for text in read_texts(gates.queries) if text.strip()), _MAX_QUERIES))
    if not texts:
        raise DataError(
            f"gates.queries: {gates.queries}",
            "a text on each line",
            "no text",
            "write texts that users search for into the file, or set gates.queries to null",
        )
    return tuple(normalize(texts).to_pylist())


def user_query_gates(run: Run, manifest: ReleaseManifest) -> dict[str, Gate]:
    """Return recall@10 of `gates.queries` as a gate that always passes; empty if it is not set.

    Raises:
        SpaceMismatch: the job's encoder is not that of the release.
    """
    job = run.job
    texts = read_user_queries(job.gates)
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
    usable = vectors[np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)]
    if not len(usable):
        say(
            f"gates.queries: the encoder knows none of the {len(texts):,} texts in {job.gates.queries}; "
            "their recall is not measured"
        )
        return {}
    recall = _measure_recall(run, manifest, usable)
    sentence = (
        f"recall@10 of {len(usable):,} texts of gates.queries is {recall.value:.4f} (95 % interval "
        f"{recall.low:.4f} to {recall.high:.4f}): reported only; the gate of recall@10 uses rows of the "
        "corpus"
    )
    return {USER_QUERY_RECALL: Gate(value=recall.value, threshold=None, passed=True, sentence=sentence)}


def load_affine(store: Store, release: ReleaseManifest) -> Affine | None:
    """Load the release's transform as an affine map; None if it has no transform."""
    return load_transform(release.transform.read(store)).affine() if release.transform else None


def _measure_recall(run: Run, manifest: ReleaseManifest, vectors: np.ndarray) -> Proportion:
    """Return recall@10 of the release's index at its stored effort.

    The exact neighbours are found by a search of all rows.

    Args:
        vectors: (q, d), of the queries.
    """
    from pipeline.index.truth import NOT_A_ROW

    store = run.store
    addresses = np.full(len(vectors), NOT_A_ROW, dtype=np.int64)
    with store.scratch() as scratch:
        queries = store_queries(store, addresses, vectors.astype(np.float32), scratch)
    source = LiveRows(store, manifest.space_id, run.job.corpus.id, manifest.dead)
    units, _ = live_units(run.workers, source, placed_units(manifest))
    task = ScanTruth(source, load_affine(store, manifest), queries)
    truth_parts = scan_truth(run, task, units, manifest.index.dim)
    return run.workers.run(RecallOf(store, manifest, queries), truth_parts, Pool(1))


@dataclass(frozen=True)
class RecallOf(PlainTask[tuple[FileRef, ...], Proportion]):
    """Compute the recall@10 of a release's index for stored queries.

    The exact neighbours come in several files, each found among a part of the rows.
    """

    store: Store
    manifest: ReleaseManifest
    queries: FileRef

    def work(self, truth_parts: tuple[FileRef, ...]) -> Proportion:
        from pipeline.index.parts import load_index
        from pipeline.index.recall import recall
        from pipeline.index.truth import ExactTopK

        store, queries = self.store, load_queries(self.store, self.queries)
        truth = reduce(ExactTopK(queries).merge, (load_truth(store, part) for part in truth_parts))
        index = load_index(store, self.manifest.index, self.manifest.tombstones)
        return recall(index, queries, truth, (10,))[10]
