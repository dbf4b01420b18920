"""Compare how many sentences per second kinds of encoders embed, as Sentence-BERT does (Reimers and Gurevych
2019, table 7): averages of word vectors, a BiLSTM with max pooling, and a Transformer.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.speed

The Transformer, all-MiniLM-L6-v2, is measured three times: with batches in the order of the file, each
padded to its longest sentence; with sentences sorted by length (both in PyTorch as transformers and
sentence-transformers run it); and packed, as Manta runs it. Word vectors (300 dimensions) and the BiLSTM
(2048 in each direction, as InferSent) are random, which changes no speed. Takes about ten minutes on two
idle cores.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from sentence_transformers import SentenceTransformer

from pipeline.models.classic.new_vocabulary import count_words
from pipeline.models.classic.recurrent import write_recurrent_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.weights import RecurrentSettings
from tests.benchmarks.machine import machine, print_table, spread

_BATCH = 32  # sentences in a batch of the Transformer, in both orders
_DIM = 300  # of word vectors
_BILSTM = RecurrentSettings(cell="lstm", width=2048, directions=2, readout="max", word_dim=_DIM)
_LENGTH = 256  # most words or tokens of a sentence
Encode = Callable[[list[str]], np.ndarray]


def sentences(data: Path, count: int) -> list[str]:
    """Sample distinct sentences of STS-B (train, dev and test), which come from captions, news and forums."""
    tables = [pq.read_table(data / "sts" / f"STSB-{split}.parquet") for split in ("train", "dev", "test")]
    columns = (table[name].to_pylist() for table in tables for name in ("sentence1", "sentence2"))
    distinct = sorted({text for column in columns for text in column})
    chosen = np.random.default_rng(0).choice(len(distinct), min(count, len(distinct)), replace=False)
    return [distinct[index] for index in chosen]


def write_word_vectors(file: Path, texts: list[str]) -> None:
    """Write a random vector for each word, in the format of word2vec."""
    words, rng = sorted(count_words(texts)), np.random.default_rng(1)
    rows = (f"{word} {' '.join(f'{value:.4f}' for value in rng.normal(size=_DIM))}" for word in words)
    file.write_text("\n".join([f"{len(words)} {_DIM}", *rows, ""]))


def in_file_order(peer: SentenceTransformer) -> Encode:
    """Return a function that encodes batches in the given order, each padded to its longest sentence."""

    @torch.inference_mode()
    def encode(texts: list[str]) -> np.ndarray:
        batches = (texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH))
        vectors = [peer(peer.preprocess(batch))["sentence_embedding"] for batch in batches]
        return torch.cat(vectors).numpy()

    return encode


def encoders(top: Path, texts: list[str]) -> dict[str, Encode]:
    """Return each encoder by its name in the table."""
    write_word_vectors(top / "words.vec", texts)
    write_recurrent_folder(_BILSTM, count_words(texts), top / "bilstm", seed=1)

    def ours(**settings: object) -> Encode:
        own = EncoderSettings.model_validate({"max_length": _LENGTH, **settings})
        threads = torch.get_num_threads()
        return load_encoder(own, EncodeSettings(threads=threads)).encode

    packed = load_encoder(EncoderSettings(), EncodeSettings(threads=torch.get_num_threads()))
    peer = SentenceTransformer(str(packed.folder.path), device="cpu")
    return {
        "average of word vectors": ours(path=str(top / "words.vec")),
        "BiLSTM, max pooling": ours(path=str(top / "bilstm")),
        "Transformer, order of the file": in_file_order(peer),
        "Transformer, sorted by length": lambda texts: peer.encode(texts, batch_size=_BATCH),
        "Transformer, packed": packed.encode,
    }


def main(data: Path, count: int, rounds: int, threads: int) -> None:
    """Measure all encoders in turn, `rounds` times, and print the table."""
    torch.set_num_threads(threads)
    texts = sentences(data, count)
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        by_name = encoders(Path(top), texts)
        for encode in by_name.values():
            encode(texts[:_BATCH])
        order, by_length, packed = (by_name[name](texts) for name in list(by_name)[2:])
        difference = max(float(np.abs(packed - other).max()) for other in (order, by_length))
        seconds: dict[str, list[float]] = {name: [] for name in by_name}
        for number in range(rounds):
            for name in list(by_name)[:: 1 if number % 2 else -1]:
                start = time.perf_counter()
                by_name[name](texts)
                seconds[name].append(time.perf_counter() - start)
    base = np.array(seconds["Transformer, order of the file"])
    rows = [
        (name, spread([len(texts) / each for each in taken], ",.0f"), spread((base / taken).tolist()))
        for name, taken in seconds.items()
    ]
    print_table(
        f"{len(texts):,} sentences of STS-B, {threads} threads, {rounds} rounds in turn; {machine()}",
        rows,
        ("encoder", "sentences/s", "speed relative to batches in the order of the file"),
    )
    print(f"\nlargest difference of the Transformer's vectors: {difference:.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    folder = os.environ.get("MANTA_EVAL_DATA") or sys.exit(
        "set MANTA_EVAL_DATA to the folder of evaluation data"
    )
    main(Path(folder), given.sentences, given.rounds, given.threads)
