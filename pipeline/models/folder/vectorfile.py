"""Read and write files of word vectors: GloVe's text, word2vec's text and binary forms, plain or gzipped.

Imports neither torch nor transformers.
"""

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal, cast

import numpy as np
import pyarrow as pa

from pipeline.errors import ModelError

_BATCH_BYTES = 1 << 20  # vectors of a batch; as text they take twenty times as much memory
_MAX_LINE_BYTES = 1 << 20  # a line of 300 numbers has 3,000
_MAX_NUMBER_BYTES = 64  # longest number in a text file
_MAX_WORD_BYTES = 1 << 10  # longest first word, whose line shows whether the file is text or binary
_MAX_DIM = 1 << 16  # published vectors have at most 1,024 dimensions
_CHUNK_BYTES = 2 << 20  # bytes of a binary file that are read at once
_HEADER = re.compile(rb"(\d+) (\d+)\s*")
_OTHER_FILES = {  # name and remedy of other formats, by the first bytes of a file
    b"PK\x03\x04": ("a zip archive", "unpack it first"),
    b"\xba\x16O/": ("fastText's own binary form", "give the .vec file instead"),
    b"\x93NUMPY": ("a NumPy array", "save words and vectors as text"),
    b"BZh": ("a bzip2 file", "unpack it, or pack it with gzip"),
}

Words = tuple[list[str], np.ndarray]
"""n words and their vectors (n, dim) float32"""


@dataclass(frozen=True)
class Layout:
    """Layout of a file of word vectors."""

    form: Literal["text", "binary"]
    dim: int
    count: int | None
    """number of words that the first line states; None: the file has no such line (GloVe)"""


def read_vectors(file: Path, name: str) -> Iterator[Words]:
    """Yield words and vectors in batches, in the file's order; a word may occur several times.

    Args:
        file: local path.
        name: name of the file, for errors.

    Raises:
        ModelError: a line or word does not have `dim` finite numbers, or the first line has the wrong count.
    """
    try:
        layout = read_layout(file, name)
        found = 0
        with _open(file) as stream:
            _skip_mark(stream)
            read = _read_text if layout.form == "text" else _read_binary
            for words, vectors in read(stream, layout, name):
                found += len(words)
                yield words, vectors
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ModelError(
            name, "a complete gzip file", " ".join(str(error).split()), "fetch the file again"
        ) from None
    except OSError as error:
        raise ModelError(
            name, "a readable file", " ".join(str(error).split()), "check the file and its permissions"
        ) from None
    if layout.count not in (None, found):
        raise ModelError(
            name,
            f"{layout.count:,} words, as its first line says",
            f"{found:,}",
            "fetch the file again, or correct its first line",
        )


def word2vec_text(words: Sequence[str], vectors: np.ndarray) -> bytes:
    """Return a file in word2vec's text form, from which `read_vectors` reads the same words and bits.

    Args:
        words: n words without white space at their ends.
        vectors: (n, dim) finite numbers, written as float32 with the fewest digits that are exact.
    """
    numbers = pa.array(vectors.astype(np.float32).ravel()).cast(pa.string()).to_numpy(zero_copy_only=False)
    rows = numbers.reshape(vectors.shape)
    lines = (f"{word} {' '.join(row)}\n" for word, row in zip(words, rows, strict=True))
    return f"{len(words)} {vectors.shape[1]}\n{''.join(lines)}".encode()


def read_layout(file: Path, name: str) -> Layout:
    """Detect the layout by the beginning of the file, regardless of its name.

    Raises:
        ModelError: the file does not have word vectors.
    """
    with _open(file) as stream:
        _skip_mark(stream)
        first = stream.readline(_MAX_LINE_BYTES)
        for magic, (found, remedy) in _OTHER_FILES.items():
            if first.startswith(magic):
                raise ModelError(
                    name, "word vectors in GloVe's or word2vec's form, plain or .gz", found, remedy
                )
        header = _HEADER.fullmatch(first)
        if header is None:
            return Layout("text", _count_numbers(first, name), None)
        count, dim = (int(number) for number in header.groups())
        if not 0 < dim <= _MAX_DIM:
            raise ModelError(
                f"{name}: line 1",
                "the number of words and their dimension",
                f"dimension {dim:,}",
                "give another file",
            )
        line = stream.read(_MAX_WORD_BYTES + _MAX_NUMBER_BYTES * dim).split(b"\n", 1)[0]
        second = line.rsplit(None, dim)
        is_text = len(second) == dim + 1 and _parse_numbers(second[1:]) is not None
        return Layout("text" if is_text else "binary", dim, count)


def _open(file: Path) -> BinaryIO:
    """Open a file, gzipped or not."""
    with file.open("rb") as stream:
        is_gzip = stream.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(file)) if is_gzip else file.open("rb")


def _skip_mark(stream: BinaryIO) -> None:
    """Skip the byte order mark at the beginning of a file, if it has one."""
    if stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        stream.seek(0)


def _count_numbers(first: bytes, name: str) -> int:
    """Count the numbers after the first word of a file without a header."""
    fields = first.split()[1:]
    count = next(
        (n for n, field in enumerate(reversed(fields)) if _parse_numbers([field]) is None), len(fields)
    )
    if count < 2 or len(first) == _MAX_LINE_BYTES:
        raise ModelError(
            f"{name}: line 1",
            "a word and its numbers, or the two numbers of word2vec's first line",
            _excerpt(first),
            "give a file of word vectors, or the folder that holds config.json and the weights",
        )
    return count


def _parse_numbers(fields: list[bytes]) -> np.ndarray | None:
    """Parse finite numbers, float32; None if a field is something else."""
    try:
        numbers = pa.array(fields, pa.string()).cast(pa.float32()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _read_text(stream: BinaryIO, layout: Layout, name: str) -> Iterator[Words]:
    """Read GloVe's or word2vec's text form: one line per word, the word and then its numbers."""
    header_lines = 0 if layout.count is None else 1
    lines = enumerate(iter(partial(stream.readline, _MAX_LINE_BYTES), b""), 1)
    rows = ((number, line) for number, line in lines if number > header_lines and not line.isspace())
    batch_rows = -(-_BATCH_BYTES // (4 * layout.dim))
    while batch := list(islice(rows, batch_rows)):
        yield _parse_lines(batch, layout.dim, name)


def _parse_lines(rows: list[tuple[int, bytes]], dim: int, name: str) -> Words:
    """Parse numbered lines; the numbers of all lines are parsed at once."""
    words: list[bytes] = []
    fields: list[bytes] = []
    for number, line in rows:
        parts = line.rsplit(None, dim)  # from the right: GloVe has words that contain spaces
        # a number before the last dim ones is not part of a word: the line has too many numbers
        too_many = b" " in parts[0] and _parse_numbers([parts[0].rsplit()[-1]]) is not None
        if len(parts) != dim + 1 or too_many:
            raise _malformed(f"{name}: line {number}", dim, line)
        words.append(parts[0].strip())
        fields += parts[1:]
    numbers = _parse_numbers(fields)
    if numbers is None:
        index, wrong = next((i, field) for i, field in enumerate(fields) if _parse_numbers([field]) is None)
        row = index // dim
        raise _malformed(f"{name}: line {rows[row][0]}", dim, words[row] + b" ... " + wrong)
    return [_decode_word(word) for word in words], numbers.reshape(-1, dim)


def _read_binary(stream: BinaryIO, layout: Layout, name: str) -> Iterator[Words]:
    """Read word2vec's binary form: a word, a space, dim little-endian float32, often a line end."""
    stream.readline()  # the header
    size, rest, number = 4 * layout.dim, b"", 0
    while chunk := stream.read(_CHUNK_BYTES):
        buffer, start = rest + chunk, 0
        words: list[bytes] = []
        vectors: list[bytes] = []
        while (space := buffer.find(b" ", start)) >= 0 and space + 1 + size <= len(buffer):
            words.append(buffer[start:space].lstrip(b"\n"))
            vectors.append(buffer[space + 1 : space + 1 + size])
            start = space + 1 + size
        rest = buffer[start:]
        if words:
            yield _decode_batch(words, vectors, number, layout.dim, name)
            number += len(words)
    if rest.strip():
        raise ModelError(
            f"{name}: word {number + 1}",
            f"a word and {size} bytes",
            f"the end of the file after {len(rest)} bytes",
            "fetch the file again",
        )


def _decode_batch(words: list[bytes], vectors: list[bytes], before: int, dim: int, name: str) -> Words:
    """Decode words and vectors.

    Args:
        words: bytes of each word.
        vectors: bytes of each vector.
        before: number of words earlier in the file, for errors.
        dim: dimension of the vectors.
        name: name of the file, for errors.
    """
    numbers = np.frombuffer(b"".join(vectors), "<f4").reshape(-1, dim)
    bad = ~np.isfinite(numbers).all(axis=1) | [not word or b"\n" in word for word in words]
    if bad.any():
        row = int(np.argmax(bad))
        raise ModelError(
            f"{name}: word {before + row + 1}",
            f"a word and {dim} finite numbers, as in word2vec's binary form after its first line",
            _excerpt(words[row]),
            "check the first line's two numbers, or fetch the file again",
        )
    return [_decode_word(word) for word in words], numbers


def _decode_word(word: bytes) -> str:
    """Decode a word. Some published files have words truncated inside a character, which no text contains."""
    return word.decode("utf-8", "replace")


def _malformed(where: str, dim: int, line: bytes) -> ModelError:
    return ModelError(where, f"a word and {dim} finite numbers", _excerpt(line), "correct or remove it")


def _excerpt(line: bytes) -> str:
    text = line[:60].decode("utf-8", "replace").rstrip()
    return f"{text!a}{'...' if len(line) > 60 else ''}"
