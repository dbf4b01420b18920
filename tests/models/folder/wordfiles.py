"""Files of word vectors in every form, and the token table of the packaged MiniLM as word vectors."""

import functools
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from pipeline.models.folder.locate import locate
from tests.models.folders import LONG, TEXTS

FORMS = ("glove", "word2vec", "binary")


@functools.cache
def minilm_table() -> tuple[tuple[str, ...], np.ndarray]:
    """Whole words of the published vocabulary and their vectors, (n, 384) float32.

    These are all words and punctuation marks of the tests' texts, and every hundredth other word.
    """
    folder = locate("all-MiniLM-L6-v2")
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    whole = [
        word
        for word in vocabulary
        if not word.startswith("##") and (len(word) == 1 or not word.startswith("["))
    ]
    needed = set(re.findall(r"\w+|[^\w\s]", " ".join([*TEXTS, LONG]).lower()))
    words = [word for index, word in enumerate(whole) if word in needed or index % 100 == 0]
    tensors = load_file(folder / "model.safetensors")
    table = next(tensor for name, tensor in tensors.items() if name.endswith("word_embeddings.weight"))
    return tuple(words), table[[vocabulary[word] for word in words]]


def write_words(file: Path, words: tuple[str, ...], vectors: np.ndarray, form: str = "glove") -> Path:
    """Write word vectors, compressed with gzip if the file's name ends in .gz.

    Text has the shortest digits that give each number exactly.
    """
    text = b"".join(
        f"{word} {' '.join(map(str, row))}\n".encode() for word, row in zip(words, vectors, strict=True)
    )
    header = f"{len(words)} {vectors.shape[1]}\n".encode()
    content = {
        "glove": text,
        "word2vec": header + text,
        "binary": header
        + b"".join(
            word.encode() + b" " + row.astype("<f4").tobytes() + b"\n"
            for word, row in zip(words, vectors, strict=True)
        ),
    }[form]
    file.write_bytes(gzip.compress(content, 1) if file.suffix == ".gz" else content)
    return file


def write_counts(file: Path, counts: dict[str, float], **more: list[object]) -> Path:
    """Write a Parquet file of word counts."""
    pq.write_table(pa.table({"word": list(counts), "count": list(counts.values()), **more}), file)
    return file
