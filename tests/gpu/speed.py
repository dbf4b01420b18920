"""Tokens per second of an encoder, beside sentence-transformers and beside the matrix rate of the device."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers

from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.benchmarks.encode import useful_gflop
from tests.benchmarks.families import peer_of
from tests.gpu.scale import PartTable, Scale, bert, peak_gib, texts_of, wait

ROUNDS = 3
BATCH_ROWS = 2_048  # texts of a batch of `encode_stream`
DEFAULT_BATCH, LARGE_BATCH = 32, 512  # texts; the former is that of sentence-transformers
DTYPES = ("float32", "bfloat16", "float16")
LATENCY_CALLS = 40


class PeerEngine(NamedTuple):
    """Another library with a batch size."""

    name: str
    encode: Callable[[list[str]], object]


class EngineSpeed(NamedTuple):
    """Speed of an engine on a corpus, in tokens per second."""

    engine: str
    rate: float
    forward: float | None = None
    """without waiting for tokenized texts; None: not measured"""
    memory: str = ""
    """peak GiB of torch on the GPU"""


def speed(scale: Scale) -> PartTable:
    """Encode short texts and texts of mixed lengths with every engine, each after a warm-up."""
    folder, rates, rows = bert(scale), matrix_rates(scale), []
    corpora = {
        "4 to 24 words": texts_of(scale.choose(100, 12_000), 4, 24),
        "4 to 200 words": texts_of(scale.choose(30, 3_000), 4, 200),
    }
    for name, texts in corpora.items():
        encoder = _encoder(folder, "float32", scale)
        lengths = encoder.count_tokens(texts).lengths
        flop = 1e9 * useful_gflop(encoder, lengths) / int(lengths.sum())
        found = [_peer_rate(peer, texts, int(lengths.sum()), scale) for peer in _peers(scale, folder)]
        found += [_own_rate(folder, dtype, texts, scale) for dtype in DTYPES[: scale.choose(2, 3)]]
        lines = [[name, *_cells(each, found[0].rate, flop, rates)] for each in found]
        for line in lines:
            scale.report(line)
        rows += lines
    header = ("texts", "engine", "tokens/s", "of the first", "forward tokens/s", "of the matrix rate", "GiB")
    matrices = ", ".join(f"{name} {rate:.1f} TFLOP/s" for name, rate in rates.items())
    return PartTable(f"BERT of {scale.choose(3, 12)} layers; torch.mm: {matrices}", header, rows)


def _cells(found: EngineSpeed, base: float, flop: float, rates: dict[str, float]) -> list[str]:
    """Format a measurement. flop: operations of a token; rates: TFLOP/s of torch.mm by type."""
    cells = [found.engine, f"{found.rate:,.0f}", f"{found.rate / base:.2f}"]
    if found.forward is None:
        return [*cells, "", "", found.memory]
    highest = rates["float32" if found.engine.endswith("float32") else "bfloat16"]
    return [*cells, f"{found.forward:,.0f}", f"{found.forward * flop / 1e12 / highest:.0%}", found.memory]


def latency(scale: Scale) -> PartTable:
    """Encode one short text, and several, again and again."""
    folder, rows = bert(scale), []
    encoder, peer = _encoder(folder, "bfloat16", scale), _peers(scale, folder)[0]
    for count in (1, 8, 64):
        texts = texts_of(count, 6, 12)
        calls = {"Manta bfloat16": partial(encoder.encode, texts, query=True)}
        calls[peer.name] = partial(peer.encode, texts)
        for name, call in calls.items():
            call()
            taken = 1e3 * np.array([seconds(call, scale) for _ in range(scale.choose(3, LATENCY_CALLS))])
            rows.append([str(count), name, f"{np.median(taken):.2f}", f"{np.quantile(taken, 0.99):.2f}"])
    return PartTable("Milliseconds of a call", ("texts", "engine", "median", "99th percentile"), rows)


def matrix_rates(scale: Scale) -> dict[str, float]:
    """Measure TFLOP/s of products of large square matrices, by type."""
    size, rates = scale.choose(256, 8_192), {}
    for name in ("float32", "bfloat16"):
        left, right = (
            torch.randn(size, size, device=scale.device, dtype=getattr(torch, name)) for _ in range(2)
        )
        torch.mm(left, right)
        fastest = min(seconds(lambda left=left, right=right: torch.mm(left, right), scale) for _ in range(8))
        rates[name] = 2 * size**3 / fastest / 1e12
    return rates


def seconds(work: Callable[[], object], scale: Scale) -> float:
    """Measure the wall time of a call, with everything that it started on the GPU."""
    wait(scale)
    start = time.perf_counter()
    work()
    wait(scale)
    return time.perf_counter() - start


def _encoder(folder: Path, dtype: str, scale: Scale) -> Encoder:
    encode = EncodeSettings.model_validate({"dtype": dtype})
    return load_encoder(EncoderSettings(path=str(folder), pooling="mean"), encode, scale.device)


def _own_rate(folder: Path, dtype: str, texts: list[str], scale: Scale) -> EngineSpeed:
    """Measure a stream of texts, as in a night; a thread tokenizes ahead."""
    encoder = _encoder(folder, dtype, scale)
    batches = [texts[start : start + BATCH_ROWS] for start in range(0, len(texts), BATCH_ROWS)]
    encoder.encode(texts[:BATCH_ROWS])
    peak_gib(scale)
    rates = []
    for _ in range(ROUNDS):
        before = replace(encoder.counters)
        taken = seconds(lambda: [each.vectors for each in encoder.encode_stream(batches)], scale)
        tokens = encoder.counters.tokens - before.tokens
        rates.append((tokens / taken, tokens / (encoder.counters.forward_s - before.forward_s)))
    rate, forward = np.median(rates, axis=0).tolist()
    return EngineSpeed(f"Manta {dtype}", rate, forward, peak_gib(scale))


def _peer_rate(peer: PeerEngine, texts: list[str], tokens: int, scale: Scale) -> EngineSpeed:
    """Measure a call with all texts, the faster of two."""
    peer.encode(texts[: 4 * DEFAULT_BATCH])
    peak_gib(scale)
    taken = min(seconds(lambda: peer.encode(texts), scale) for _ in range(scale.choose(1, 2)))
    return EngineSpeed(peer.name, tokens / taken, memory=peak_gib(scale))


def _flash_attention() -> list[str]:
    """Return the names that transformers gives to the installed versions of flash-attn."""
    versions = {version: f"is_flash_attn_{version}_available" for version in (2, 3, 4)}
    return [
        f"flash_attention_{version}"
        for version, check in versions.items()
        if getattr(transformers.utils, check, lambda: False)()
    ]


def _peers(scale: Scale, folder: Path) -> list[PeerEngine]:
    """Return sentence-transformers with its own batch size and with a large one, and with flash-attn."""
    dtype = torch.float16 if scale.on_gpu else torch.float32
    kinds: dict[str, tuple[int, ...]] = {"sdpa": (DEFAULT_BATCH, LARGE_BATCH)}
    if scale.on_gpu:
        kinds |= dict.fromkeys(_flash_attention(), (LARGE_BATCH,))
    peers = []
    for attention, sizes in kinds.items():
        model = peer_of(folder, "mean", scale.device, dtype=dtype, attn_implementation=attention)
        peers += [
            PeerEngine(
                f"sentence-transformers {str(dtype)[6:]}, {attention}, batches of {size}",
                partial(model.encode, batch_size=size),
            )
            for size in sizes
        ]
    return peers
