"""Word vectors for tests: the token table of the packaged MiniLM, written in every form that files of word
vectors have.
"""

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
    """(words, vectors (n, 384) float32): whole words of the published vocabulary, those of the tests' texts
    and some others, signs among them.
    """
    folder = locate("all-MiniLM-L6-v2")
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    whole = [
        word
        for word in vocabulary
        if not word.startswith("##") and (len(word) == 1 or not word.startswith("["))
    ]
    needed = set(re.findall(r"\w+|[^\w\s]", " ".join([*TEXTS, LONG]).lower()))
    words = [word for place, word in enumerate(whole) if word in needed or place % 100 == 0]
    tensors = load_file(folder / "model.safetensors")
    table = next(tensor for name, tensor in tensors.items() if name.endswith("word_embeddings.weight"))
    return tuple(words), table[[vocabulary[word] for word in words]]


def write_words(file: Path, words: tuple[str, ...], vectors: np.ndarray, form: str = "glove") -> Path:
    """The file, by gzip where its name ends so.

    Text has each number's shortest digits that mean it exactly.
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
    """A Parquet file of word frequencies."""
    pq.write_table(pa.table({"word": list(counts), "count": list(counts.values()), **more}), file)
    return file
