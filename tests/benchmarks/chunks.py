"""Measure the nights of a corpus of long documents that are cut into chunks.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.chunks --words

Documents are sentences of running text, joined. On the second night a sentence is replaced in 1 % of them, on
the third one is inserted: how many chunks are encoded? With --words, the encoder averages random word vectors
and a token is a word, so that the nights take seconds.
"""

import argparse
import os
import re
import tempfile
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tests.benchmarks.incremental import night, write
from tests.benchmarks.machine import machine, print_table

_DIM = 64  # of the random word vectors
_KINDS = {
    "tokens": ("corpus.chunk.by=tokens", "corpus.chunk.max_tokens=128"),
    "tokens, overlap 32": (
        "corpus.chunk.by=tokens",
        "corpus.chunk.max_tokens=128",
        "corpus.chunk.overlap=32",
    ),
    "sentences": ("corpus.chunk.by=sentences", "corpus.chunk.max_tokens=128"),
}


def documents(count: int) -> list[list[str]]:
    """Return the sentences of the first documents of the evaluation data."""
    file = Path(os.environ["MANTA_EVAL_DATA"], "running", "documents.parquet")
    rows = pq.read_table(file, columns=["doc_id", "text"]).to_pylist()
    groups = (group for _, group in groupby(rows, key=lambda row: row["doc_id"]))
    return [[row["text"] for row in group] for _, group in zip(range(count), groups, strict=False)]


def edit(texts: list[list[str]], rng: np.random.Generator, *, replace: bool) -> None:
    """Replace a sentence by another one in 1 % of the documents, at least one of them, or insert one."""
    for number in rng.permutation(len(texts))[: max(1, len(texts) // 100)].tolist():
        position = int(rng.integers(len(texts[number])))
        new = f"This sentence, with number {rng.integers(1_000_000)}, was written on another day."
        texts[number][position : position + replace] = [new]


def write_words(file: Path, texts: list[list[str]]) -> None:
    """Write a random vector for each word of the texts, in the format of GloVe."""
    words = sorted(
        {word for sentences in texts for text in sentences for word in re.findall(r"\w+", text.lower())}
    )
    vectors = np.random.default_rng(1).normal(size=(len(words), _DIM)).round(4).tolist()
    rows = zip(words, vectors, strict=True)
    file.write_text("\n".join(f"{word} {' '.join(map(str, vector))}" for word, vector in rows) + "\n")


def measure(count: int, kind: str, has_words: bool) -> list[tuple[str, ...]]:
    """Return a line for each of the three nights."""
    texts, rng, lines = documents(count), np.random.default_rng(0), []
    ids = np.array([f"document-{number:06d}" for number in range(len(texts))])
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        arguments = [f"corpus.uri={top}/corpus", f"release.root={top}/releases", *_KINDS[kind]]
        if has_words:
            write_words(Path(top, "words.txt"), texts)
            arguments.append(f"encoder.path={top}/words.txt")
        for name in ("all documents are new", "a sentence replaced", "a sentence inserted"):
            if lines:
                edit(texts, rng, replace=name.endswith("replaced"))
            write(Path(top, "corpus"), ids, [" ".join(sentences) for sentences in texts])
            wall, answer = night(arguments)
            counts, seconds = answer["counts"], answer["seconds"]
            encoded = f"{counts['encoded']:,}", f"{counts['encoded'] / counts['chunks']:.2%}"
            rows = counts["new"] + counts["changed"]
            times = f"{wall:.1f}", f"{seconds['ingest']:.1f}", f"{seconds.get('encode', 0):.1f}"
            lines.append((kind, name, f"{counts['chunks']:,}", f"{rows:,}", *encoded, *times))
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--words", action="store_true", help="encode by averages of random word vectors")
    parser.add_argument("--kinds", nargs="+", default=list(_KINDS), choices=_KINDS)
    options = parser.parse_args()
    texts = [" ".join(sentences) for sentences in documents(options.documents)]
    print_table(
        f"{len(texts):,} documents of {np.mean(list(map(len, texts))):,.0f} characters; {machine()}",
        [line for kind in options.kinds for line in measure(options.documents, kind, options.words)],
        (
            "chunks by",
            "night",
            "chunks",
            "new or changed",
            "encoded",
            "of all",
            "seconds",
            "ingest",
            "encode",
        ),
    )
