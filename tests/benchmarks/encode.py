"""Compare the speed of encoding with what else a CPU can run: same weights, same threads, one process.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.encode

The peers are sentence-transformers, ONNX Runtime (float32, int8) and OpenVINO (float32, bfloat16), each at
its best batch size. All are measured in turn. Prints for each corpus and number of threads the speeds and the
CPU times, then the accuracy of each: Spearman on STS-B (test), and the worst cosine with the vectors of
sentence-transformers. Needs the extra `bench`. Takes about twenty minutes on two idle cores.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
from scipy.stats import spearmanr

from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.layers.linear import Linear
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.benchmarks.encode_peers import Encode, peers
from tests.benchmarks.machine import machine, print_table, spread

BATCH_SIZES = (4, 8, 32, 64)
DTYPES = ("float32", "bfloat16", "int8")
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


def captions(root: Path, encoder: Encoder, count: int = CAPTIONS) -> Corpus:
    """Sample captions, which are short sentences."""
    texts = pq.read_table(root / "captions" / "shards")["text"].to_pylist()
    chosen = np.random.default_rng(0).choice(len(texts), count, replace=False)
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


class Measured(NamedTuple):
    """Seconds of each round: on the clock, and of all threads of this process."""

    wall: np.ndarray
    cpu: np.ndarray


def engines(threads: int, work: Path) -> dict[str, Encode]:
    """Return Manta with every dtype, and every peer, by name."""
    ours = {f"Manta {dtype}": partial(_manta, encoder_of(dtype, threads)) for dtype in DTYPES}
    first = encoder_of("float32", threads)
    return ours | peers(first.folder.path, first.max_length, threads, work)


def encoder_of(dtype: str, threads: int) -> Encoder:
    """Load the packaged encoder."""
    return load_encoder(
        EncoderSettings(), EncodeSettings.model_validate({"dtype": dtype, "threads": threads})
    )


def _manta(encoder: Encoder, texts: list[str], size: int) -> np.ndarray:
    """Encode with buffers of Manta's own size; a batch size has no effect."""
    return encoder.encode(texts)


def best_size(name: str, encode: Encode, texts: list[str]) -> int:
    """Return the batch size with which the texts are encoded in the shortest time, 0 for Manta."""
    if name.startswith("Manta"):
        return 0
    times = {size: seconds(lambda size=size: encode(texts, size)) for size in BATCH_SIZES}  # type: ignore[misc]
    return min(times, key=lambda size: times[size])


def measure(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, Measured]:
    """Call all functions in turn, `rounds` times, every second time in reverse order."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in list(calls)[:: 1 if number % 2 else -1]:
            cpu, wall = time.process_time(), time.perf_counter()
            calls[name]()
            taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: Measured(*np.array(pairs).T) for name, pairs in taken.items()}


def compare(corpus: Corpus, by_name: dict[str, Encode], gflop: float, rounds: int) -> list[list[str]]:
    """Measure all engines on a corpus. Returns a row of the table for each."""
    sizes = {name: best_size(name, encode, corpus.texts) for name, encode in by_name.items()}
    calls = {name: partial(encode, corpus.texts, sizes[name]) for name, encode in by_name.items()}
    taken = measure(calls, rounds)
    base = next(iter(taken.values()))
    return [
        [
            name,
            str(sizes[name] or "packed"),
            f"{corpus.tokens / float(np.median(wall)):,.0f}",
            f"{gflop / float(np.median(wall)):,.0f}",
            spread((base.wall / wall).tolist()),
            spread((base.cpu / cpu).tolist()),
        ]
        for name, (wall, cpu) in taken.items()
    ]


def accuracy(root: Path, by_name: dict[str, Encode]) -> list[list[str]]:
    """Return Spearman on STS-B and the cosines with sentence-transformers' vectors, a row for each engine."""
    left, right, human = sts_pairs(root, "STSB-test")
    exact = by_name["sentence-transformers"](left + right, BATCH_SIZES[1])
    rows = []
    for name, encode in by_name.items():
        vectors = encode(left + right, BATCH_SIZES[1])
        cosines = (exact * vectors).sum(axis=1)
        spearman = sts_score(vectors, human)
        rows.append([name, f"{spearman:.3f}", f"{1 - cosines.min():.2e}", f"{1 - cosines.mean():.2e}"])
    return rows


def sts_pairs(root: Path, name: str) -> tuple[list[str], list[str], np.ndarray]:
    """Read the first and the second sentences of an STS set, and how similar people found them."""
    table = pq.read_table(root / "sts" / f"{name}.parquet")
    left, right = (table[column].to_pylist() for column in ("sentence1", "sentence2"))
    return left, right, table["score"].to_numpy()


def sts_score(vectors: np.ndarray, human: np.ndarray) -> float:
    """Return Spearman x100 of cosines with human scores (n,).

    vectors: (2n, dim), those of all first sentences, then of all second ones.
    """
    scores = (vectors[: len(human)] * vectors[len(human) :]).sum(axis=1)
    return 100 * float(spearmanr(scores, human).statistic)


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


def main(root: Path, rounds: int, threads: list[int], count: int, start: bool) -> None:
    """Measure and print all tables."""
    chooser = encoder_of("float32", 1)
    corpora = [captions(root, chooser, count), mixed(root, chooser)]
    print(f"all-MiniLM-L6-v2, {chooser.arithmetic.device.instruction_set()}; {machine()}; {rounds} rounds")
    for corpus in corpora:
        print(
            f"{corpus.name}: {len(corpus.texts)} texts of {corpus.lengths.min()} to "
            f"{corpus.lengths.max()} tokens, {corpus.tokens:,} in all"
        )
    header = (
        "engine",
        "batch",
        "tokens/s",
        "GFLOP/s",
        "speed, of Manta float32",
        "CPU time per text, inverse",
    )
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as work:
        for number in threads:
            torch.set_num_threads(number)
            by_name = engines(number, Path(work))
            highest = "torch.mm {:.0f} GFLOP/s, Manta's linear layer {:.0f}".format(*ceilings())
            for corpus in corpora:
                rows = compare(corpus, by_name, useful_gflop(chooser, corpus.lengths), rounds)
                title = f"{corpus.name}, {number} threads; {highest}; load {os.getloadavg()[0]:.2f}"
                print_table(title, rows, header)
                sys.stdout.flush()
        rows = accuracy(root, by_name)
    print_table("STS-B, test", rows, ("engine", "Spearman x100", "1 - worst cosine", "1 - mean cosine"))
    if start:
        peer = start_up(_PEER, str(chooser.folder.path))
        print(
            f"\nprocess start to first vector, one thread: sentence-transformers {peer:.1f} s, "
            f"Manta {start_up(_OURS):.1f} s"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--captions", type=int, default=CAPTIONS)
    parser.add_argument("--start", action="store_true", help="measure the start of processes, too")
    given = parser.parse_args()
    folder = os.environ.get("MANTA_EVAL_DATA") or sys.exit(
        "set MANTA_EVAL_DATA to the folder of evaluation data"
    )
    main(Path(folder), given.rounds, given.threads, given.captions, given.start)
