"""The quality gates of a release: limits that its index and row counts have to meet to be published."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.index.build.index_shape import GIB
from pipeline.index.measure.metrics import IndexMetrics, Proportion
from pipeline.settings import Dtype, GateSettings
from pipeline.store.records.units import RowCounts
from pipeline.store.releases.manifest import Gate
from pipeline.text.tokens.coverage import ScriptCoverage

# Defaults of gates.canary_cosine: an encoder repeats its vectors up to the rounding of its dtype.
_MIN_CANARY_COSINE = {"float32": 0.9999, "bfloat16": 0.999, "float16": 0.999, "int8": 0.99}


@dataclass(frozen=True)
class RowMetrics:
    """Metrics of the rows of a release that gates check."""

    counts: RowCounts
    """all rows of the corpus, including those reused from the previous release"""
    bad_vectors: int = 0
    """stored vectors that are zero or not finite"""
    duplicate_ids: int = 0
    """rows whose id occurs earlier in the corpus"""
    token_coverage: ScriptCoverage | None = None
    """tokens by script; None for a release of a version that did not count them"""
    max_quarantined: float = 1.0
    """highest allowed proportion of quarantined rows"""
    failed_canaries: int = 0
    """canary texts whose vectors are not finite"""


def judge(
    metrics: IndexMetrics,
    rows: RowMetrics,
    settings: GateSettings,
    *,
    canary: float | None = None,
    dtype: Dtype = "float32",
) -> dict[str, Gate]:
    """Return the result of every gate that is set, by name. A release is published if all of them passed.

    Args:
        canary: lowest cosine of a canary text's vectors in this release and the previous one; None if they
            are not compared.
        dtype: the encoder's dtype, on which the default of gates.canary_cosine depends.
    """
    counts = rows.counts
    gates = {
        "row_conservation": _exactly(
            counts.accounted, counts.rows, "rows read are vectors, quarantined or filtered"
        ),
        "indexed_rows": _exactly(metrics.rows, counts.good, "vectors are in the index"),
        "finite_vectors": _exactly(rows.bad_vectors, 0, "vectors are non-finite or zero"),
        "unique_ids": _exactly(
            rows.duplicate_ids + metrics.duplicate_addresses, 0, "ids or addresses repeat"
        ),
        "quarantined": _at_most(
            counts.quarantined / max(counts.wanted, 1),
            rows.max_quarantined,
            f"of the rows read, {counts.quarantined:,} of {counts.wanted:,}, are quarantined",
        ),
    }
    if settings.recall_at_10 is not None:
        gates["recall_at_10"] = _recall_gate(metrics.recall["10"], settings.recall_at_10)
    if settings.max_size_gib is not None:
        gates["size_gib"] = _at_most(metrics.file_bytes / GIB, settings.max_size_gib, "GiB of index files")
    if settings.p99_ms is not None:
        latency = metrics.latency
        gates["p99_ms"] = _at_most(
            latency.p99_ms, settings.p99_ms, f"ms is the 99th percentile of {latency.queries} single queries"
        )
    if rows.token_coverage is not None:
        gates |= _token_gates(rows.token_coverage, settings)
    min_cosine = settings.canary_cosine if settings.canary_cosine is not None else _MIN_CANARY_COSINE[dtype]
    if rows.failed_canaries:
        gates["canary_cosine"] = _failed_canary_gate(rows.failed_canaries, min_cosine)
    elif canary is not None:
        gates["canary_cosine"] = _canary_gate(canary, min_cosine)
    return gates


def _canary_gate(cosine: float, min_cosine: float) -> Gate:
    sentence = (
        f"canary texts keep a cosine of {cosine:.6f} with the previous release, {min_cosine:g} at least"
    )
    return Gate(value=cosine, threshold=min_cosine, passed=cosine >= min_cosine, sentence=sentence)


def lowest_cosine(before: np.ndarray, now: np.ndarray) -> float:
    """Return the lowest cosine of row i of `before` with row i of `now`, both (n, d).

    Two zero vectors count as equal: an encoder of word vectors gives zero for texts of unknown words. The
    cosine of a zero vector and a nonzero one is 0.
    """
    left, right = before.astype(np.float64), now.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = np.einsum("nd,nd->n", left, right) / np.maximum(lengths, 1e-300)
    return float(np.min(np.where(left.any(axis=1) | right.any(axis=1), cosines, 1.0)))


def _exactly(value: int, expected: int, description: str) -> Gate:
    """Return a gate on a count; `description` follows the count in its sentence."""
    return Gate(
        value=value,
        threshold=expected,
        passed=value == expected,
        relation="exactly",
        sentence=f"{value:,} {description}, {expected:,} expected",
    )


def _at_most(value: float, limit: float, description: str) -> Gate:
    return Gate(
        value=value,
        threshold=limit,
        passed=value <= limit,
        relation="at most",
        sentence=f"{value:.4g} {description}, {limit:g} at most",
    )


def _recall_gate(recall: Proportion, target: float) -> Gate:
    """Return the gate on recall@10, which fails only if the whole interval is below the target."""
    sentence = (
        f"recall@10 is {recall.value:.4f} (95 % interval {recall.low:.4f} to {recall.high:.4f}), {target:g} "
        "at least within it"
    )
    return Gate(value=recall.value, threshold=target, passed=recall.high >= target, sentence=sentence)


def user_recall_gate(
    metrics: IndexMetrics, settings: GateSettings, remarks: str = "", *, is_fixed: bool = False
) -> Gate:
    """Return the gate on recall@10 of the queries of gates.queries, which fails as the gate of rows does.

    Args:
        metrics: with `user_recall`.
        remarks: queries that are left out, in parentheses.
        is_fixed: whether index.nprobe sets the search effort.
    """
    recall, bound = metrics.user_recall, settings.user_recall_bound
    assert recall is not None
    passed = bound is None or recall.high >= bound
    sentence = (
        f"recall@10 of {metrics.user_queries:,} queries of gates.queries{remarks} is {recall.value:.4f} "
        f"(95 % interval {recall.low:.4f} to {recall.high:.4f}, by every other query), "
    )
    sentence += "reported only" if bound is None else f"{bound:g} at least within it"
    if not passed:
        sentence += f"; {_user_recall_remedy(metrics, bound or 0.0, is_fixed=is_fixed)}"
    return Gate(value=recall.value, threshold=bound, passed=passed, sentence=sentence)


def _user_recall_remedy(metrics: IndexMetrics, bound: float, *, is_fixed: bool) -> str:
    """Say why the recall is below the bound, and what to change."""
    accept = "or accept less by gates.recall_at_10_queries"
    if is_fixed:
        return f"raise index.nprobe from {metrics.effort}, or set it to null so that it is chosen, {accept}"
    why = "the codes of the index are not exact enough for these queries"
    if metrics.effort is not None:
        why = f"of the values of {metrics.effort_name} that are tried, none above {metrics.effort} helps"
        if any(point.effort == metrics.effort and point.low >= bound for point in metrics.user_curve):
            effort = f"{metrics.effort_name} {metrics.effort}"
            return (
                f"the half of the queries that {effort} was chosen with reaches it: give more queries, raise "
                f"index.nprobe, {accept}"
            )
    return f"{why}: choose a more exact index.kind, or raise index.memory_gib so that auto does, {accept}"


def _token_gates(coverage: ScriptCoverage, settings: GateSettings) -> dict[str, Gate]:
    gates = {}
    rows = coverage.uncounted_rows
    uncounted = [f"{rows:,} rows of an earlier version were not counted"] if rows else []
    if (limit := settings.unknown_tokens) is not None:
        gates["unknown_tokens"] = _at_most_tokens(
            coverage.unknown_proportion,
            limit,
            "are unknown to the encoder's tokenizer",
            [coverage.most_unknown_scripts(), *uncounted],
            "use an encoder that knows the language, or raise gates.unknown_tokens",
        )
    if (limit := settings.lost_tokens) is not None:
        gates["lost_tokens"] = _at_most_tokens(
            coverage.lost_proportion,
            limit,
            "are beyond the encoder's limit and in no vector",
            [coverage.most_lost_scripts(), *uncounted],
            "split the texts, raise encoder.max_length where the encoder takes more, or raise "
            "gates.lost_tokens",
        )
    return gates


def _at_most_tokens(value: float, limit: float, problem: str, details: Sequence[str], remedy: str) -> Gate:
    """Return a gate on a proportion of the tokens; its sentence names the remedy if it fails.

    Args:
        problem: the predicate of a sentence with these tokens as its subject.
        details: remarks that follow the problem in parentheses; empty ones are left out.
    """
    remarks = "; ".join(filter(None, details))
    in_parentheses = f" ({remarks})" if remarks else ""
    sentence = f"{value:.1%} of the tokens {problem}{in_parentheses}, {limit:.0%} at most"
    if value > limit:
        sentence += f"; {remedy}"
    return Gate(value=value, threshold=limit, passed=value <= limit, relation="at most", sentence=sentence)


def _failed_canary_gate(count: int, min_cosine: float) -> Gate:
    """Return a failed gate: an encoder that gives NaN for a canary text would do so for some queries."""
    texts = "1 canary text" if count == 1 else f"{count} canary texts"
    return Gate(
        value=-1.0,  # stands for the lowest cosine, because a NaN vector has no cosine
        threshold=min_cosine,
        passed=False,
        sentence=f"the encoder gives NaN or infinity for {texts}; check encode.dtype and the model's files",
    )
