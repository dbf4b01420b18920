"""The queries of gates.queries, by whose recall@10 the search effort is chosen as well.

The gate recall_at_10 uses rows of the corpus as queries. Queries of users are farther from their neighbours,
so they need a higher search effort, and an index that compresses its vectors finds fewer of their neighbours.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipeline.errors import DataError, SpaceMismatch
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.trial_encode import encode_texts, is_usable
from pipeline.flows.index.records import store_queries
from pipeline.index.gates import user_recall_gate
from pipeline.index.measure.metrics import IndexMetrics
from pipeline.log import announce
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.settings import GateSettings, Job
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import USER_QUERY_RECALL, Gate, ReleaseManifest
from pipeline.text.formats.user_queries import UserQueries, read_user_queries_file
from pipeline.text.normalize import normalize

_MAX_QUERIES = 1_000  # enough to know recall to two digits


class EncodedQueries(NamedTuple):
    """The queries of `gates.queries` as vectors."""

    file: FileRef | None
    """their vectors, each once; None if none is usable"""
    read: int
    """number of queries that were read"""
    repeated: int = 0
    """number of queries with the vector of another one"""
    unknown: int = 0
    """number of queries that are left out, because their vector is zero or not finite"""
    is_cut: bool = False
    """whether the file has more queries than are read"""
    times: tuple[str, ...] = ()
    """first and last day of the queries; empty if the file has none"""

    @property
    def dates(self) -> str:
        """The days of the queries as a phrase; empty if they are not known."""
        return f" ({' to '.join(dict.fromkeys(self.times))})" if self.times else ""

    @property
    def remarks(self) -> str:
        """The numbers of queries that are left out, by reason, in parentheses; empty if none is."""
        found = [f"only the first {_MAX_QUERIES:,} are read"] if self.is_cut else []
        if self.repeated:
            found.append(f"repeated queries, used once: {self.repeated:,}")
        if self.unknown:
            found.append(f"queries without a usable vector, left out: {self.unknown:,}")
        return f" ({'; '.join(found)})" if found else ""


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
            "make the file again with manta query-log, give texts, or set gates.queries to null",
        )
    return replace(queries, texts=tuple(normalize(queries.texts).to_pylist()))


def encode_user_queries(context: FlowContext) -> EncodedQueries | None:
    """Encode the queries of `gates.queries` and store their vectors; None if it is not set.

    Raises:
        DataError, SpaceMismatch: as `read_user_queries`.
    """
    from pipeline.index.measure.truth import NOT_A_ROW

    queries = read_user_queries(context.job.gates, open_folder(context.job.encoder))
    if queries is None:
        return None
    vectors = _raw_vectors(context, queries)
    usable = vectors[is_usable(vectors)]
    usable = usable[np.sort(np.unique(usable, axis=0, return_index=True)[1])]
    file = None
    if len(usable):
        addresses = np.full(len(usable), NOT_A_ROW, dtype=np.int64)
        with context.store.scratch() as scratch:
            file = store_queries(context.store, addresses, usable, scratch)
    unknown = int((~is_usable(vectors)).sum())
    repeated = len(vectors) - unknown - len(usable)
    encoded = EncodedQueries(file, len(queries), repeated, unknown, queries.is_cut, queries.times)
    if encoded.unknown:
        announce(f"gates.queries: queries without a usable vector, left out: {encoded.unknown:,}")
    return encoded


def _raw_vectors(context: FlowContext, queries: UserQueries) -> np.ndarray:
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


def check_same_space(job: Job, manifest: ReleaseManifest) -> None:
    """Raise SpaceMismatch if the job's encoder is not the release's, and gates.queries is set."""
    if job.gates.queries is not None and (found := open_folder(job.encoder).space_id) != manifest.space_id:
        raise SpaceMismatch(
            "gates.queries",
            f"an encoder of space {manifest.space_id}",
            f"space {found}",
            "set encoder to the encoder of the release, or gates.queries to null",
        )


def user_query_gates(job: Job, queries: EncodedQueries | None, measured: IndexMetrics) -> dict[str, Gate]:
    """Return the gate on recall@10 of `gates.queries`; empty if it is not set.

    Args:
        measured: metrics of the index, with the recall of the queries.
    """
    if queries is None:
        return {}
    if measured.user_recall is None:
        bound = job.gates.user_recall_bound
        sentence = (
            f"recall@10 of gates.queries is not known: the encoder knows none of its {queries.read:,} "
            f"queries; write others into {job.gates.queries}, or set gates.queries to null"
        )
        return {USER_QUERY_RECALL: Gate(value=None, threshold=bound, passed=bound is None, sentence=sentence)}
    is_fixed = job.index.nprobe is not None
    return {USER_QUERY_RECALL: user_recall_gate(measured, job.gates, queries.remarks, is_fixed=is_fixed)}
