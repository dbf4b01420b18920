"""Measure recall@10 for the texts of gates.queries: queries of users, which are not rows of the corpus.

The gate of recall@10 uses rows of the corpus as queries. For other queries, an index that compresses its
vectors finds fewer of the neighbours.
"""

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import DataError, SpaceMismatch
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.trial_encode import encode_texts, is_usable
from pipeline.flows.index.records import store_queries
from pipeline.flows.index.released import StoredTruth, scan_release, use_index
from pipeline.index.measure.metrics import Proportion
from pipeline.log import announce
from pipeline.models.folder.folder import open_folder
from pipeline.settings import GateSettings
from pipeline.store.releases.manifest import USER_QUERY_RECALL, Gate, ReleaseManifest
from pipeline.text.formats.queries import read_texts
from pipeline.text.normalize import normalize

if TYPE_CHECKING:
    from pipeline.index.measure.searched_parts import SearchedParts

_MAX_QUERIES = 1_000  # enough to know recall to two digits


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


def user_query_gates(context: FlowContext, manifest: ReleaseManifest) -> dict[str, Gate]:
    """Return recall@10 of `gates.queries` as a gate that always passes; empty if it is not set.

    Raises:
        SpaceMismatch: the job's encoder is not the release's.
    """
    job = context.job
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
    vectors = encode_texts(context, texts, query=True)
    usable = vectors[is_usable(vectors)]
    if not len(usable):
        announce(
            f"gates.queries: the encoder knows none of the {len(texts):,} texts in {job.gates.queries}; "
            "their recall is not measured"
        )
        return {}
    left_out = ""
    if unknown := len(texts) - len(usable):
        left_out = f"; texts without a usable vector, left out: {unknown:,}"
        announce(f"gates.queries{left_out.replace(';', ':')}")
    first = f" (only the first {_MAX_QUERIES:,} are read)" if len(texts) == _MAX_QUERIES else ""
    recall = _measure_recall(context, manifest, usable)
    sentence = (
        f"recall@10 of {len(usable):,} texts of gates.queries{first} is {recall.value:.4f} (95 % interval "
        f"{recall.low:.4f} to {recall.high:.4f}): reported only; the gate of recall@10 uses rows of the "
        f"corpus{left_out}"
    )
    return {USER_QUERY_RECALL: Gate(value=recall.value, threshold=None, passed=True, sentence=sentence)}


@dataclass(frozen=True)
class RecallOf:
    """Compute the recall@10 of an index for stored queries."""

    truth: StoredTruth

    def __call__(self, parts: "SearchedParts") -> Proportion:
        """Return the recall of all parts together."""
        from pipeline.index.measure.recall import recall

        return recall(parts, *self.truth.load(), (10,))[10]


def _measure_recall(context: FlowContext, manifest: ReleaseManifest, vectors: np.ndarray) -> Proportion:
    """Return recall@10 of the release's index at its stored effort.

    The exact neighbours are found by a search of all rows.

    Args:
        vectors: (q, d), of the queries.
    """
    from pipeline.index.measure.truth import NOT_A_ROW

    addresses = np.full(len(vectors), NOT_A_ROW, dtype=np.int64)
    with context.store.scratch() as scratch:
        queries = store_queries(context.store, addresses, vectors.astype(np.float32), scratch)
    return use_index(context, manifest, RecallOf(scan_release(context, manifest, queries)))
