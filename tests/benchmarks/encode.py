"""Compare the speed of encoding with sentence-transformers: same weights, same threads, one process.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.encode

Takes about three minutes on two idle cores.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from sentence_transformers import SentenceTransformer

from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.layers.linear import Linear
from pipeline.settings import EncoderSettings, EncodeSettings

PAIRS = 7
BATCH_SIZES = (32, 64, 128)
CAPTIONS = 1_500
TEXTS_PER_BIN = 4  # texts for each of the lengths 8 to 15 tokens, 16 to 23 and so on up to 256
START_RUNS = 3
_OURS = """
import time
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
load_encoder(EncoderSettings(), EncodeSettings()).encode(["one text"])
print(time.time())
"""
_PEER = """
import sys, time
from sentence_transformers import SentenceTransformer
SentenceTransformer(sys.argv[1], device="cpu").encode(["one text"])
print(time.time())
"""


@dataclass(frozen=True)
class Corpus:
    """Texts with their lengths in tokens."""

    name: str
    texts: list[str]
    lengths: np.ndarray

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())


def seconds(work: Callable[[], object]) -> float:
    """Measure the wall time of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def captions(root: Path, encoder: Encoder) -> Corpus:
    """Sample captions, which are short sentences."""
    texts = pq.read_table(root / "captions" / "shards")["text"].to_pylist()
    chosen = np.random.default_rng(0).choice(len(texts), CAPTIONS, replace=False)
    return _corpus("captions", [texts[i] for i in chosen], encoder)


def mixed(root: Path, encoder: Encoder) -> Corpus:
    """Join neighbouring sentences to texts of 8 to 256 tokens, equally many in each length range."""
    sentences = [
        text
        for file in ("running/documents", "wiki/sentences")
        for text in pq.read_table(root / f"{file}.parquet")["text"].to_pylist()
    ]
    rng = np.random.default_rng(0)
    bins: dict[int, list[str]] = {number: [] for number in range(31)}
    while any(len(texts) < TEXTS_PER_BIN for texts in bins.values()):
        drafts = [
            _join(sentences, int(rng.integers(len(sentences))), int(rng.integers(4, 240))) for _ in range(500)
        ]
        for draft, length in zip(drafts, encoder.count_tokens(drafts).lengths, strict=True):
            if 8 <= length <= 256 and len(texts := bins[min(30, (length - 8) // 8)]) < TEXTS_PER_BIN:
                texts.append(draft)
    texts = [text for number in bins for text in bins[number]]
    return _corpus("mixed lengths", [texts[i] for i in rng.permutation(len(texts))], encoder)


def _join(sentences: list[str], start: int, words: int) -> str:
    """Join sentences from index `start` on, until there are at least `words` words."""
    text = sentences[start]
    while len(text.split()) < words and (start := start + 1) < len(sentences):
        text += " " + sentences[start]
    return text


def _corpus(name: str, texts: list[str], encoder: Encoder) -> Corpus:
    return Corpus(name, texts, encoder.count_tokens(texts).lengths)


def useful_gflop(encoder: Encoder, lengths: np.ndarray) -> float:
    """Return the multiplications and additions that the texts need without padding, in units of 1e9.

    Linear layers compute for every token, attention for every pair of tokens of a text.
    """
    config = encoder.folder.config
    d, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    return (
        layers
        * float((2 * lengths * (4 * d * d + 2 * d * inner) + 4 * lengths.astype(float) ** 2 * d).sum())
        / 1e9
    )


def ceilings() -> tuple[float, float]:
    """Measure GFLOP/s of torch.mm and of Manta's linear layer, (1024, 384) by (384, 1536), best of 20."""
    x, weight = torch.randn(1024, 384), torch.randn(1536, 384)
    transposed, linear = weight.T.contiguous(), Linear(weight, torch.zeros(1536), rows=1024)
    work = 2 * 1024 * 384 * 1536 / 1e9
    with torch.inference_mode():
        return tuple(
            work / min(seconds(lambda call=call: call(x)) for _ in range(20))
            for call in (lambda x: torch.mm(x, transposed), linear)
        )  # type: ignore[return-value]


def compare(corpus: Corpus, encoder: Encoder, peer: SentenceTransformer, threads: int) -> str:
    """Measure one line of the table: both encoders in turn, with sentence-transformers' best batch size."""
    torch.set_num_threads(threads)
    torch_gflops, linear_gflops = ceilings()
    trial_s = {
        size: seconds(lambda size=size: peer.encode(corpus.texts, batch_size=size)) for size in BATCH_SIZES
    }
    size = min(trial_s, key=lambda size: trial_s[size])
    calls = (lambda: peer.encode(corpus.texts, batch_size=size), lambda: encoder.encode(corpus.texts))
    difference = float(np.abs(calls[0]() - calls[1]()).max())
    pairs = np.empty((PAIRS, 2))
    for number in range(PAIRS):
        for side in (number % 2, 1 - number % 2):  # alternate which of the two is first
            pairs[number, side] = seconds(calls[side])
    ratios = np.sort(pairs[:, 0] / pairs[:, 1])
    rates = useful_gflop(encoder, corpus.lengths) / np.median(pairs, axis=0)
    speeds = corpus.tokens / np.median(pairs, axis=0)
    return (
        f"{corpus.name:<14} {threads:>7}  {size:>5} {speeds[0]:>9,.0f} {speeds[1]:>9,.0f}   "
        f"{np.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})   "
        f"{rates[0]:>4.0f} {rates[1]:>4.0f}   {torch_gflops:>4.0f} {rates[1] / torch_gflops:>5.0%}   "
        f"{linear_gflops:>4.0f} {rates[1] / linear_gflops:>5.0%}   {difference:.1e}"
    )


def start_up(script: str, *arguments: str) -> float:
    """Return the median seconds from the start of a process to its first vector.

    script: Python code that prints the time of the first vector, as `time.time()`.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    durations = []
    for _ in range(START_RUNS):
        start = time.time()
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            check=True,
            env=environment,
            capture_output=True,
            text=True,
        )
        durations.append(float(done.stdout.split()[-1]) - start)
    return float(np.median(durations))


def main() -> None:
    root = os.environ.get("MANTA_EVAL_DATA")
    if root is None:
        sys.exit("set MANTA_EVAL_DATA to the folder of evaluation data")
    encoder = load_encoder(EncoderSettings(), EncodeSettings())
    peer = SentenceTransformer(str(encoder.folder.path), device="cpu")
    corpora = [captions(Path(root), encoder), mixed(Path(root), encoder)]
    print(
        f"all-MiniLM-L6-v2, float32, {encoder.arithmetic.device.instruction_set()}, {os.cpu_count()} "
        f"cores, load {os.getloadavg()[0]:.2f} before"
    )
    for corpus in corpora:
        print(
            f"{corpus.name}: {len(corpus.texts)} texts of {corpus.lengths.min()} to "
            f"{corpus.lengths.max()} tokens, {corpus.tokens:,} in all"
        )
    print(
        f"{PAIRS} interleaved pairs; GFLOP/s without padding, as a proportion of two ceilings: torch.mm, and "
        "Manta's linear layer"
    )
    print(
        "corpus         threads  batch  peer tok/s  ours    ratio of speeds (range)  peer ours   mm    "
        "prop.  lin.  prop.   largest difference"
    )
    for corpus in corpora:
        for threads in (1, 2):
            print(compare(corpus, encoder, peer, threads), flush=True)
    print(
        "process start to first vector, one thread: peer "
        f"{start_up(_PEER, str(encoder.folder.path)):.1f} s, ours {start_up(_OURS):.1f} s"
    )
    print(f"load {os.getloadavg()[0]:.2f} after")


if __name__ == "__main__":
    main()
