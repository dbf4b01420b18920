"""Is the index good enough: recall against exact search, the least search effort that reaches it, latency,
and gates as values.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pipeline.config import Settings
from pipeline.index.build import threads
from pipeline.index.library import faiss
from pipeline.index.parts import Parts
from pipeline.index.plan import GIB
from pipeline.index.structure import chain_of, is_exact, ivf_of, unwrap
from pipeline.index.truth import NOBODY, Neighbours, Queries
from pipeline.settings import Dtype, GateSettings
from pipeline.store.manifest import Gate
from pipeline.text.tokens.coverage import ScriptCoverage

RANKS = (1, 10, 100)
_SAME_SCORE = 1e-6  # float32 cosines of equal texts differ by 2e-7 at most between two matrix products
_Z = 1.959964  # standard normal quantile of a two-sided 95 % interval
_BEYOND_TARGET = 2  # points of the curve after the chosen one: it shows what more effort would buy
_FLAT_POINTS, _FLAT_GAIN = 4, 5e-4  # four points are a factor of four in effort
_CANARY = {"float32": 0.9999, "bfloat16": 0.999, "float16": 0.999}


class Share(Settings):
    """hits of trials, with the 95 % interval of Wilson (1927), which is sound at 0 and 1 and for few trials.

    Nothing to find counts as found.
    """

    hits: int
    trials: int
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, hits: int, trials: int, independent: float | None = None) -> "Share":
        """independent: how many independent trials those amount to; null: all of them."""
        if not trials:
            return cls(hits=0, trials=0, value=1.0, low=0.0, high=1.0)
        count = trials if independent is None else independent
        value, z2 = hits / trials, _Z**2 / count
        centre = (value + z2 / 2) / (1 + z2)
        half = _Z * math.sqrt(value * (1 - value) / count + z2 / (4 * count)) / (1 + z2)
        return cls(
            hits=hits, trials=trials, value=value, low=max(0.0, centre - half), high=min(1.0, centre + half)
        )


class CurvePoint(Settings):
    """Recall at one search effort, on the queries that choose it; query_ms: mean of one query in a batch on
    one thread.
    """

    effort: int
    recall_at_10: float
    low: float = 0.0
    """lower end of its 95 % interval"""
    query_ms: float


class Latency(Settings):
    """Milliseconds of one query searched by itself on one thread, k = 10."""

    queries: int
    p50_ms: float
    p99_ms: float


class Measured(Settings):
    """What was measured on a built index; what gates judge and the report shows."""

    rows: int
    recall: dict[str, Share]
    """at rank 1, 10 and 100, on the half of the queries that did not choose the effort"""
    effort: int | None
    """nprobe, or efSearch of HNSW; null for exhaustive search"""
    effort_name: str | None
    curve: tuple[CurvePoint, ...]
    latency: Latency
    queries: int
    duplicate_addresses: int
    file_bytes: int
    nlist: int
    imbalance: float
    fingerprint: str
    recall_near_dead: Share | None = None
    """at rank 10, for queries whose own row is dead: there deletions cluster; null where too few are"""
    raised_from: int | None = None
    """effort that live rows need, if it was raised for the sake of queries near dead rows"""


@dataclass(frozen=True)
class Counted:
    """Rows of a night: read (or reused) = vectors + quarantined + skipped."""

    read: int
    vectors: int
    quarantined: int
    skipped: int = 0
    bad_vectors: int = 0
    """vectors in the units that are zero or not finite"""
    duplicate_ids: int = 0
    """ids of the user that repeat"""
    covered: ScriptCoverage | None = None
    """None for a release of a version that did not count tokens"""
    most_quarantined: float = 1.0
    """proportion of the rows that may be quarantined"""
    failed_canaries: int = 0
    """canary texts whose vector is not finite"""


def recall(
    index: Any, queries: Queries, truth: Neighbours, ranks: tuple[int, ...] = RANKS
) -> dict[int, Share]:
    """Share of the exact k nearest that the index returns, at the effort set in it, for each k of `ranks`.

    A query's own address is no answer.

    Captions and the like hold many equal texts, so the k-th place is often shared: an answer is right if its
    exact score is at least the k-th exact score less 1e-6. Exact scores are known for the answers listed in
    `truth` (which goes beyond k) and for indexes that store vectors whole; an answer beyond the list of a
    compressing index counts as wrong. Where there are fewer than k other rows, all of them are asked for.
    """
    exact_scores = _scores_are_exact(index.base if isinstance(index, Parts) else index)
    shares = {}
    for k in ranks:
        found, scores = _answers(
            index, queries, k
        )  # of its own: HNSW searches at least as wide as the answers it is asked for
        wanted = (truth.addresses[:, :k] != NOBODY).sum(axis=1)
        last = (
            np.where(
                wanted > 0,
                np.take_along_axis(truth.scores, np.maximum(wanted - 1, 0)[:, None], axis=1)[:, 0],
                np.inf,
            )
            - _SAME_SCORE
        )
        hits = np.zeros(len(last), dtype=np.int64)
        for row, limit in enumerate(last):
            right = np.isin(found[row], truth.addresses[row][truth.scores[row] >= limit])
            right |= exact_scores & (scores[row] >= limit)
            hits[row] = min(int((right & (found[row] != NOBODY)).sum()), int(wanted[row]))
        shares[k] = Share.of(int(hits.sum()), int(wanted.sum()), _independent(hits, wanted))
    return shares


def _independent(hits: np.ndarray, wanted: np.ndarray) -> float:
    """The answers of one query are found or missed together: as many independent trials as give the variance
    that queries show (Kish 1965, design effect).
    """
    asked, trials = wanted > 0, int(wanted.sum())
    if not trials or not 0 < hits.sum() < trials:
        return float(trials)
    value, spread = hits.sum() / trials, float((hits[asked] / wanted[asked]).var())
    return (
        float(np.clip(value * (1 - value) * asked.sum() / spread, asked.sum(), trials))
        if spread
        else float(trials)
    )


def _scores_are_exact(index: Any) -> bool:
    """Whether vectors are stored whole, with nothing after the normalisation that changes them."""
    chain = chain_of(index)
    normalised_last = not chain or isinstance(chain[-1], faiss.NormalizationTransform)
    return normalised_last and is_exact(index)


def _answers(index: Any, queries: Queries, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Addresses and scores (q, k) with each query's own address left out: k + 1 are asked for, and the own or
    else the last one goes.
    """
    scores, found = index.search(np.ascontiguousarray(queries.vectors, dtype=np.float32), k + 1)
    own = found == queries.addresses[:, None]
    own[~own.any(axis=1), -1] = True
    kept = np.argsort(own, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(found, kept, axis=1), np.take_along_axis(scores, kept, axis=1)


def effort_name(index: Any) -> str | None:
    """nprobe, efSearch, or None for a kind that always searches everything."""
    if ivf_of(index) is not None:
        return "nprobe"
    return "efSearch" if hasattr(unwrap(index), "hnsw") else None


def get_effort(index: Any) -> int | None:
    """The search effort set in the index."""
    name, ann = effort_name(index), unwrap(index)
    return None if name is None else int(ann.nprobe if name == "nprobe" else ann.hnsw.efSearch)


def set_effort(index: Any, effort: int) -> None:
    """Set nprobe (at most nlist) or efSearch; a file written afterwards keeps it, so that plain faiss
    searches with it too.
    """
    name, ann = effort_name(index), unwrap(index)
    if name == "nprobe":
        ann.nprobe = max(1, min(effort, ann.nlist))
    elif name == "efSearch":
        ann.hnsw.efSearch = max(1, effort)


def choose_nprobe(
    index: Any, queries: Queries, truth: Neighbours, target: float
) -> tuple[int | None, tuple[CurvePoint, ...]]:
    """The least effort whose recall@10 is above `target` with its whole 95 % interval (so that other queries
    meet it too), else the best one; it is set in `index`. With it, the measured curve. (None, ()) for
    exhaustive kinds.

    nprobe runs over 1, 2, 3, 4, 6, 8, 12 ... nlist, efSearch over 16, 24, 32 ... 1,024.
    """
    if effort_name(index) is None:
        return None, ()
    curve: list[CurvePoint] = []
    for effort in efforts(index):
        curve.append(point_at(index, queries, truth, effort))
        if sum(point.low >= target for point in curve) > _BEYOND_TARGET or is_flat(curve):
            break
    enough = [point for point in curve if point.low >= target]
    chosen = enough[0] if enough else max(curve, key=lambda point: (point.recall_at_10, -point.effort))
    set_effort(index, chosen.effort)
    return chosen.effort, tuple(curve)


def is_flat(curve: list[CurvePoint]) -> bool:
    """Whether more effort no longer helps: what is missing is lost to compression."""
    return (
        len(curve) > _FLAT_POINTS
        and curve[-1].recall_at_10 - curve[-1 - _FLAT_POINTS].recall_at_10 < _FLAT_GAIN
    )


def curve_around(parts: Parts, queries: Queries, truth: Neighbours) -> tuple[CurvePoint, ...]:
    """Points from a quarter to twice the effort that is set, which stays set; none for exhaustive kinds."""
    chosen = get_effort(parts.base)
    if chosen is None:
        return ()
    curve = []
    for effort in sorted({max(1, chosen // 4), max(1, chosen // 2), _at_most_all(parts, 2 * chosen), chosen}):
        for part in parts.indexes:
            set_effort(part, effort)
        curve.append(_timed(parts, queries, truth, effort))
    for part in parts.indexes:
        set_effort(part, chosen)
    return tuple(curve)


def _at_most_all(parts: Parts, effort: int) -> int:
    return min(effort, unwrap(parts.base).nlist) if effort_name(parts.base) == "nprobe" else effort


def point_at(index: Any, queries: Queries, truth: Neighbours, effort: int) -> CurvePoint:
    """Set the effort in the index, and measure it."""
    set_effort(index, effort)
    return _timed(index, queries, truth, effort)


def _timed(index: Any, queries: Queries, truth: Neighbours, effort: int) -> CurvePoint:
    with threads(1):
        began = time.perf_counter()
        share = recall(index, queries, truth, (10,))[10]
        spent = time.perf_counter() - began
    return CurvePoint(
        effort=effort, recall_at_10=share.value, low=share.low, query_ms=1e3 * spent / max(1, len(queries))
    )


def efforts(index: Any) -> Iterator[int]:
    """Search efforts to try, ascending: nprobe up to nlist, or efSearch from 16 to 1,024."""
    most, effort = (unwrap(index).nlist, 1) if effort_name(index) == "nprobe" else (1024, 16)
    while effort < most:
        yield effort
        if effort > 1 and effort * 3 // 2 < most:
            yield effort * 3 // 2
        effort *= 2
    yield most


def latency(index: Any, queries: Queries, most: int = 500) -> Latency:
    """Time of single queries, at most `most` of them, on one thread, after one to warm up."""
    vectors = np.ascontiguousarray(queries.vectors[:most], dtype=np.float32)
    with threads(1):
        index.search(vectors[:1], 10)
        spent = [_seconds(partial(index.search, vectors[row : row + 1], 10)) for row in range(len(vectors))]
    return Latency(
        queries=len(spent),
        p50_ms=1e3 * float(np.quantile(spent, 0.5)),
        p99_ms=1e3 * float(np.quantile(spent, 0.99)),
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def lowest_cosine(before: np.ndarray, now: np.ndarray) -> float:
    """Lowest cosine of row i of `before` with row i of `now`, both (n, d): how far a changed arithmetic moved
    the canary texts.

    Two zero vectors agree (word vectors know no word of some canaries); a zero vector and another one have
    cosine 0.
    """
    left, right = before.astype(np.float64), now.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = np.einsum("nd,nd->n", left, right) / np.maximum(lengths, 1e-300)
    return float(np.min(np.where(left.any(axis=1) | right.any(axis=1), cosines, 1.0)))


def judge(
    measured: Measured,
    counted: Counted,
    settings: GateSettings,
    *,
    canary: float | None = None,
    dtype: Dtype = "float32",
) -> dict[str, Gate]:
    """Every gate that is asked for, by name.

    A release is published only if all of them passed. canary: `lowest_cosine` with the previous release, if
    any.
    """
    accounted = counted.vectors + counted.quarantined + counted.skipped
    repeated = counted.duplicate_ids + measured.duplicate_addresses
    gates = {
        "row_conservation": _equal(accounted, counted.read, "rows read are vectors, quarantined or skipped"),
        "indexed_rows": _equal(measured.rows, counted.vectors, "vectors are in the index"),
        "finite_vectors": _equal(counted.bad_vectors, 0, "vectors are non-finite or zero"),
        "unique_ids": _equal(repeated, 0, "ids or addresses repeat"),
        "quarantined": _at_most(
            counted.quarantined / max(counted.read, 1),
            counted.most_quarantined,
            f"of the rows read, {counted.quarantined:,} of {counted.read:,}, are quarantined",
        ),
    }
    if settings.recall_at_10 is not None:
        gates["recall_at_10"] = _recall_gate(measured.recall["10"], settings.recall_at_10)
    if settings.max_size_gib is not None:
        gates["size_gib"] = _at_most(measured.file_bytes / GIB, settings.max_size_gib, "GiB of index files")
    if settings.p99_ms is not None:
        gates["p99_ms"] = _at_most(
            measured.latency.p99_ms,
            settings.p99_ms,
            f"ms is the 99th percentile of {measured.latency.queries} single queries",
        )
    if settings.unknown_tokens is not None and counted.covered is not None:
        gates["unknown_tokens"] = _unknown_gate(counted.covered, settings.unknown_tokens)
    if settings.lost_tokens is not None and counted.covered is not None:
        gates["lost_tokens"] = _lost_gate(counted.covered, settings.lost_tokens)
    least = settings.canary_cosine if settings.canary_cosine is not None else _CANARY[dtype]
    if counted.failed_canaries:
        gates["canary_cosine"] = _failed_canaries(counted.failed_canaries, least)
    elif canary is not None:
        gates["canary_cosine"] = _canary_gate(canary, least)
    return gates


def _equal(value: int, expected: int, what: str) -> Gate:
    return Gate(
        value=value,
        threshold=expected,
        passed=value == expected,
        relation="exactly",
        sentence=f"{value:,} {what}, {expected:,} expected",
    )


def _at_most(value: float, limit: float, what: str) -> Gate:
    return Gate(
        value=value,
        threshold=limit,
        passed=value <= limit,
        relation="at most",
        sentence=f"{value:.4g} {what}, {limit:g} at most",
    )


def _recall_gate(share: Share, target: float) -> Gate:
    sentence = (
        f"recall@10 is {share.value:.4f} (95 % interval {share.low:.4f} to {share.high:.4f}), {target:g} "
        "at least within it"
    )
    return Gate(value=share.value, threshold=target, passed=share.high >= target, sentence=sentence)


def _unknown_gate(covered: ScriptCoverage, limit: float) -> Gate:
    found = "of the tokens are unknown to the encoder's tokenizer"
    remedy = "use an encoder that knows the language, or raise gates.unknown_tokens"
    worst = covered.most_unknown_scripts()
    return _token_gate(covered.unknown_share, limit, found, (worst, _uncounted(covered)), remedy)


def _lost_gate(covered: ScriptCoverage, limit: float) -> Gate:
    found = "of the tokens are beyond the encoder's limit and in no vector"
    remedy = (
        "split the texts, raise encoder.max_length where the encoder takes more, or raise gates.lost_tokens"
    )
    worst = covered.most_lost_scripts()
    return _token_gate(covered.lost_share, limit, found, (worst, _uncounted(covered)), remedy)


def _uncounted(covered: ScriptCoverage) -> str:
    rows = covered.uncounted_rows
    return f"{rows:,} rows of an earlier version were not counted" if rows else ""


def _token_gate(value: float, limit: float, found: str, details: Sequence[str], remedy: str) -> Gate:
    """At most `limit` of the tokens. Details that are not empty follow in brackets, the remedy a refusal."""
    said = "; ".join(filter(None, details))
    sentence = f"{value:.1%} {found}{f' ({said})' if said else ''}, {limit:.0%} at most"
    return Gate(
        value=value,
        threshold=limit,
        passed=value <= limit,
        relation="at most",
        sentence=sentence if value <= limit else f"{sentence}; {remedy}",
    )


def _failed_canaries(count: int, least: float) -> Gate:
    """Refused, whatever the previous release has: such an encoder will fail on somebody's query."""
    texts = "1 canary text" if count == 1 else f"{count} canary texts"
    sentence = f"the encoder gives NaN or infinity for {texts}; check encode.dtype and the model's files"
    return Gate(value=-1.0, threshold=least, passed=False, sentence=sentence)


def _canary_gate(value: float, least: float) -> Gate:
    return Gate(
        value=value,
        threshold=least,
        passed=value >= least,
        sentence=f"canary texts keep a cosine of {value:.6f} with the previous release, {least:g} at least",
    )
