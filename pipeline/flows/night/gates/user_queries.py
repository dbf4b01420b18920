"""Measure recall@10 for the texts or vectors of gates.queries: queries of users, not rows of the corpus.

The gate of recall@10 uses rows of the corpus as queries. For other queries, an index that compresses its
vectors finds fewer of the neighbours.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import DataError, SpaceMismatch
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.trial_encode import encode_texts, is_usable
from pipeline.flows.index.records import store_queries
from pipeline.flows.index.released import StoredTruth, scan_release, use_index
from pipeline.index.measure.metrics import Proportion
from pipeline.log import announce
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.settings import GateSettings
from pipeline.store.releases.manifest import USER_QUERY_RECALL, Gate, ReleaseManifest
from pipeline.text.formats.user_queries import UserQueries, read_user_queries_file
from pipeline.text.normalize import normalize

if TYPE_CHECKING:
    from pipeline.index.measure.searched_parts import SearchedParts

_MAX_QUERIES = 1_000  # enough to know recall to two digits


def read_user_queries(gates: GateSettings, folder: EncoderFolder) -> UserQueries | None:
    """Read the first thousand queries of `gates.queries` that are not blank; None if it is not set.

    Args:
        folder: the encoder that the queries will be compared with.

    Raises:
        DataError: the file has no queries.
        SpaceMismatch: it has vectors of another encoder.
    """
    if gates.queries is None:
        return None
    queries = read_user_queries_file(gates.queries, _MAX_QUERIES)
    if not queries:
        raise DataError(
            f"gates.queries: {gates.queries}",
            "a text on each line, or a vector in each row",
            "no query",
            "write texts that users search for into the file, or set gates.queries to null",
        )
    others = queries.spaces - {folder.space_id}
    if others or (len(queries.vectors) and queries.vectors.shape[1] != folder.dim):
        found = ", ".join(sorted(others)) or f"vectors of {queries.vectors.shape[1]:,} components"
        raise SpaceMismatch(
            f"gates.queries: {gates.queries}",
            f"vectors of {folder.dim:,} components in the encoder's space {folder.space_id}",
            found,
            "give vectors of this encoder, or texts, or set gates.queries to null",
        )
    return replace(queries, texts=tuple(normalize(queries.texts).to_pylist()))


def encode_user_queries(context: FlowContext, queries: UserQueries) -> np.ndarray:
    """Return the raw vectors (q, d) float32 of queries: texts are encoded, others have their vectors."""
    is_text = np.array([bool(text) for text in queries.texts])
    if not is_text.any():
        return queries.vectors
    encoded = encode_texts(context, tuple(filter(None, queries.texts)), query=True).astype(np.float32)
    vectors = np.empty((len(queries), encoded.shape[1]), np.float32)
    vectors[is_text] = encoded
    if len(queries.vectors):
        vectors[~is_text] = queries.vectors
    return vectors


def user_query_gates(context: FlowContext, manifest: ReleaseManifest) -> dict[str, Gate]:
    """Return recall@10 of `gates.queries` as a gate that always passes; empty if it is not set.

    Raises:
        SpaceMismatch: the job's encoder is not the release's, or not the one of the file's vectors.
    """
    job, folder = context.job, open_folder(context.job.encoder)
    queries = read_user_queries(job.gates, folder)
    if queries is None:
        return {}
    if folder.space_id != manifest.space_id:
        raise SpaceMismatch(
            "gates.queries",
            f"an encoder of space {manifest.space_id}",
            f"space {folder.space_id}",
            "set encoder to that of the release, or gates.queries to null",
        )
    vectors = encode_user_queries(context, queries)
    usable = vectors[is_usable(vectors)]
    if not len(usable):
        announce(
            f"gates.queries: the encoder knows none of the {len(queries):,} queries in {job.gates.queries}; "
            "their recall is not measured"
        )
        return {}
    left_out = ""
    if unknown := len(queries) - len(usable):
        left_out = f"; queries without a usable vector, left out: {unknown:,}"
        announce(f"gates.queries{left_out.replace(';', ':')}")
    first = f" (only the first {_MAX_QUERIES:,} are read)" if queries.is_cut else ""
    recall = _measure_recall(context, manifest, usable)
    sentence = (
        f"recall@10 of {len(usable):,} queries of gates.queries{first} is {recall.value:.4f} (95 % interval "
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
