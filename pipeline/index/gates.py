"""The quality gates of a release, as values."""

from collections.abc import Sequence

import numpy as np

from pipeline.index.measured import Counted, Measured, Proportion
from pipeline.index.plan import GIB
from pipeline.settings import Dtype, GateSettings
from pipeline.store.manifest import Gate
from pipeline.text.tokens.coverage import ScriptCoverage

_CANARY = {"float32": 0.9999, "bfloat16": 0.999, "float16": 0.999}


def judge(
    measured: Measured,
    counted: Counted,
    settings: GateSettings,
    *,
    canary: float | None = None,
    dtype: Dtype = "float32",
) -> dict[str, Gate]:
    """Return the result of every gate that is set, by name. A release is published if all of them passed.

    Args:
        canary: `lowest_cosine` with the previous release; None if it is not compared.
        dtype: of the encoder, which gives the default of gates.canary_cosine.
    """
    gates = {
        "row_conservation": _exactly(
            counted.vectors + counted.quarantined, counted.read, "rows read are vectors or quarantined"
        ),
        "indexed_rows": _exactly(measured.rows, counted.vectors, "vectors are in the index"),
        "finite_vectors": _exactly(counted.bad_vectors, 0, "vectors are non-finite or zero"),
        "unique_ids": _exactly(
            counted.duplicate_ids + measured.duplicate_addresses, 0, "ids or addresses repeat"
        ),
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
        times = measured.latency
        gates["p99_ms"] = _at_most(
            times.p99_ms, settings.p99_ms, f"ms is the 99th percentile of {times.queries} single queries"
        )
    if counted.covered is not None:
        gates |= _token_gates(counted.covered, settings)
    least = settings.canary_cosine if settings.canary_cosine is not None else _CANARY[dtype]
    if counted.failed_canaries:
        gates["canary_cosine"] = _failed_canaries(counted.failed_canaries, least)
    elif canary is not None:
        gates["canary_cosine"] = Gate(
            value=canary,
            threshold=least,
            passed=canary >= least,
            sentence=f"canary texts keep a cosine of {canary:.6f} with the previous release, {least:g} at "
            "least",
        )
    return gates


def lowest_cosine(before: np.ndarray, now: np.ndarray) -> float:
    """Return the lowest cosine of row i of `before` with row i of `now`, both (n, d).

    Two zero vectors agree, because word vectors know no word of some canary texts. A zero vector and another
    one have cosine 0.
    """
    left, right = before.astype(np.float64), now.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = np.einsum("nd,nd->n", left, right) / np.maximum(lengths, 1e-300)
    return float(np.min(np.where(left.any(axis=1) | right.any(axis=1), cosines, 1.0)))


def _exactly(value: int, expected: int, what: str) -> Gate:
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


def _recall_gate(found: Proportion, target: float) -> Gate:
    sentence = (
        f"recall@10 is {found.value:.4f} (95 % interval {found.low:.4f} to {found.high:.4f}), {target:g} at "
        "least within it"
    )
    return Gate(value=found.value, threshold=target, passed=found.high >= target, sentence=sentence)


def _token_gates(covered: ScriptCoverage, settings: GateSettings) -> dict[str, Gate]:
    gates = {}
    if (limit := settings.unknown_tokens) is not None:
        gates["unknown_tokens"] = _at_most_tokens(
            covered.unknown_share,
            limit,
            "are unknown to the encoder's tokenizer",
            (covered.most_unknown_scripts(), _uncounted(covered)),
            "use an encoder that knows the language, or raise gates.unknown_tokens",
        )
    if (limit := settings.lost_tokens) is not None:
        gates["lost_tokens"] = _at_most_tokens(
            covered.lost_share,
            limit,
            "are beyond the encoder's limit and in no vector",
            (covered.most_lost_scripts(), _uncounted(covered)),
            "split the texts, raise encoder.max_length where the encoder takes more, or raise "
            "gates.lost_tokens",
        )
    return gates


def _uncounted(covered: ScriptCoverage) -> str:
    rows = covered.uncounted_rows
    return f"{rows:,} rows of an earlier version were not counted" if rows else ""


def _at_most_tokens(value: float, limit: float, found: str, details: Sequence[str], remedy: str) -> Gate:
    remarks = "; ".join(filter(None, details))
    sentence = f"{value:.1%} of the tokens {found}{f' ({remarks})' if remarks else ''}, {limit:.0%} at most"
    if value > limit:
        sentence += f"; {remedy}"
    return _at_most(value, limit, "").model_copy(update={"sentence": sentence})


def _failed_canaries(count: int, least: float) -> Gate:
    """Refuse an encoder that fails for a canary text, because it will fail for some query."""
    texts = "1 canary text" if count == 1 else f"{count} canary texts"
    return Gate(
        value=-1.0,
        threshold=least,
        passed=False,
        sentence=f"the encoder gives NaN or infinity for {texts}; check encode.dtype and the model's files",
    )
