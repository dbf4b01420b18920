"""Files of word vectors, read piece by piece: GloVe's text, word2vec's text and binary forms, each also with
gzip. Imports neither torch nor transformers.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

import numpy as np
import pyarrow as pa

from pipeline.errors import ModelError

_BATCH_BYTES = 1 << 20  # of vectors held at once: as text they take twenty times that
_LONGEST_LINE = 1 << 20  # bytes: 300 numbers take 3,000
_NUMBER = 64  # bytes that one takes at most in a text
_WIDEST = 1 << 16  # dimensions: published vectors have 1,024 at most
_PIECE = 2 << 20  # of a binary file read at once
_HEADER = re.compile(rb"(\d+) (\d+)\s*")
_OTHER_FILES = {
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\xba\x16O/": "fastText's own binary form: give the .vec file instead",
    b"\x93NUMPY": "a NumPy array: save words and vectors as text",
    b"BZh": "a bzip2 file: unpack it, or pack it with gzip",
}

Words = tuple[list[str], np.ndarray]


@dataclass(frozen=True)
class Layout:
    """How a file of word vectors is written. count: as its first line says, None where it says nothing
    (GloVe).
    """

    form: Literal["text", "binary"]
    dim: int
    count: int | None


def read_vectors(file: Path, name: str) -> Iterator[Words]:
    """(words, vectors (n, dim) float32), batch after batch in the file's order, repeated words included.

    `name` is what errors call the file. ModelError, with the line or the number of the word, where there is
    no word with `dim` finite numbers, or where the file has other than the count of words that it promises.
    """
    try:
        layout = read_layout(file, name)
        found = 0
        with _opened(file) as stream:
            for words, vectors in (
                _text(stream, layout, name) if layout.form == "text" else _binary(stream, layout, name)
            ):
                found += len(words)
                yield words, vectors
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ModelError(
            name, "a whole gzip file", " ".join(str(error).split()), "fetch the file again"
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
            "fetch the file again, or mend its first line",
        )


def read_layout(file: Path, name: str) -> Layout:
    """By the file's beginning alone, whatever its name ends with."""
    with _opened(file) as stream:
        first = stream.readline(_LONGEST_LINE)
        _refuse_other(first, name)
        header = _HEADER.fullmatch(first)
        if header is None:
            return Layout("text", _width(first, name), None)
        count, dim = (int(number) for number in header.groups())
        if not 0 < dim <= _WIDEST:
            raise ModelError(
                f"{name}: line 1",
                "the number of words and their dimension",
                f"dimension {dim:,}",
                "give another file",
            )
        second = stream.read(_NUMBER * (dim + 16)).split(b"\n", 1)[0].rsplit(None, dim)
        return Layout(
            "text" if len(second) == dim + 1 and _numbers(second[1:]) is not None else "binary", dim, count
        )


def _opened(file: Path) -> BinaryIO:
    with file.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(file)) if packed else file.open("rb")


def _refuse_other(first: bytes, name: str) -> None:
    for magic, what in _OTHER_FILES.items():
        if first.startswith(magic):
            found, _, remedy = what.partition(": ")
            raise ModelError(name, "word vectors in GloVe's or word2vec's form, plain or .gz", found, remedy)


def _width(first: bytes, name: str) -> int:
    """Numbers behind the first word of a file without a header."""
    fields = first.split()[1:]
    words = next(
        (place for place, field in enumerate(reversed(fields)) if _numbers([field]) is None), len(fields)
    )
    if words < 2 or len(first) == _LONGEST_LINE:
        remedy = "give a file of word vectors, or the folder that holds config.json and the weights"
        raise ModelError(
            f"{name}: line 1",
            "a word and its numbers, or the two numbers of word2vec's first line",
            _shown(first),
            remedy,
        )
    return words


def _numbers(fields: list[bytes]) -> np.ndarray | None:
    """float32; None where one is no finite number."""
    try:
        numbers = pa.array(fields, pa.string()).cast(pa.float32()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _text(stream: BinaryIO, layout: Layout, name: str) -> Iterator[Words]:
    start = 1
    if layout.count is not None:
        stream.readline()
        start = 2
    batch = _Lines(name, layout.dim)
    for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), b""), start):
        batch.add(number, line)
        if len(batch.words) * layout.dim * 4 >= _BATCH_BYTES:
            yield batch.parsed()
            batch = _Lines(name, layout.dim)
    if batch.words:
        yield batch.parsed()


class _Lines:
    """Lines of a text, their numbers parsed all at once."""

    def __init__(self, name: str, dim: int) -> None:
        self._name, self._dim = name, dim
        self.words: list[bytes] = []
        self._fields: list[bytes] = []
        self._places: list[int] = []

    def add(self, number: int, line: bytes) -> None:
        if line.isspace():
            return
        parts = line.rsplit(None, self._dim)  # from the right: GloVe has words with spaces in them
        if len(parts) != self._dim + 1 or (
            b" " in parts[0] and _numbers([parts[0].rsplit()[-1]]) is not None
        ):
            raise _malformed(f"{self._name}: line {number}", self._dim, line)
        self.words.append(parts[0].strip())
        self._fields += parts[1:]
        self._places.append(number)

    def parsed(self) -> Words:
        numbers = _numbers(self._fields)
        if numbers is None:
            rows = (
                self._fields[start : start + self._dim] for start in range(0, len(self._fields), self._dim)
            )
            place, row = next((place, row) for place, row in enumerate(rows) if _numbers(row) is None)
            wrong = next(field for field in row if _numbers([field]) is None)
            raise _malformed(
                f"{self._name}: line {self._places[place]}", self._dim, self.words[place] + b" ... " + wrong
            )
        return [_decoded(word) for word in self.words], numbers.reshape(-1, self._dim)


def _binary(stream: BinaryIO, layout: Layout, name: str) -> Iterator[Words]:
    """word2vec's own form: a word, a space, dim float32 in little endian, often a line end."""
    stream.readline()
    size, rest, number = 4 * layout.dim, b"", 0
    while piece := stream.read(_PIECE):
        buffer, place = rest + piece, 0
        words: list[bytes] = []
        vectors: list[bytes] = []
        while (space := buffer.find(b" ", place)) >= 0 and space + 1 + size <= len(buffer):
            words.append(buffer[place:space].lstrip(b"\n"))
            vectors.append(buffer[space + 1 : space + 1 + size])
            place = space + 1 + size
        rest = buffer[place:]
        if words:
            yield _checked(words, vectors, number, layout.dim, name)
            number += len(words)
    if rest.strip():
        raise ModelError(
            f"{name}: word {number + 1}",
            f"a word and {size} bytes",
            f"the end of the file after {len(rest)} bytes",
            "fetch the file again",
        )


def _checked(words: list[bytes], vectors: list[bytes], before: int, dim: int, name: str) -> Words:
    numbers = np.frombuffer(b"".join(vectors), "<f4").reshape(-1, dim)
    bad = ~np.isfinite(numbers).all(axis=1) | [not word or b"\n" in word for word in words]
    if bad.any():
        place = int(np.argmax(bad))
        where, expected = (
            f"{name}: word {before + place + 1}",
            f"a word and {dim} finite numbers, as in word2vec's binary form after its first line",
        )
        raise ModelError(
            where,
            expected,
            _shown(words[place]),
            "check the first line's two numbers, or fetch the file again",
        )
    return [_decoded(word) for word in words], numbers


def _decoded(word: bytes) -> str:
    """Some published files cut words in the middle of a character; such a word cannot occur in a text."""
    return word.decode("utf-8", "replace")


def _malformed(where: str, dim: int, line: bytes) -> ModelError:
    return ModelError(where, f"a word and {dim} finite numbers", _shown(line), "mend or remove it")


def _shown(line: bytes) -> str:
    text = line[:60].decode("utf-8", "replace").rstrip()
    return f"{text!a}{'...' if len(line) > 60 else ''}"
