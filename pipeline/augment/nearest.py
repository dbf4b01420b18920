"""Find the nearest words of a word by exact cosines of word vectors.

Nearest words are computed when a word is first looked up, and cached in the worker. They are one of the two
sources of synonyms.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipeline.models.folder.locate import locate
from pipeline.models.folder.word_vectors import TABLE

# successive words of the file that are looked up together: published files are sorted by frequency, so the
# next words will probably be needed soon
_WORDS_AT_ONCE = 32
_ROWS_AT_ONCE = 8_192  # rows of the table in one matrix product: 10 MB with 300 dimensions


@dataclass
class NearestWords:
    """A function from a case-folded word to its nearest words by cosine, nearest first.

    Equally near words are in the order of the file. If words differ in case only, the first one is used.
    Words without a letter are never returned. Cosines are computed for fixed blocks of words, so that their
    bits do not depend on the words that were looked up before.
    """

    words: list[str]
    vectors: np.ndarray
    """(n, d) float32, as in the file; may be memory-mapped"""
    count: int
    """largest number of nearest words"""
    least_cosine: float
    """least cosine of a nearest word"""
    _neighbours: dict[int, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._folded = [word.casefold() for word in self.words]
        self._index: dict[str, int] = {}
        for index, word in enumerate(self._folded):
            self._index.setdefault(word, index)
        norms = np.concatenate([np.linalg.norm(rows, axis=1) for rows in self._table_blocks()])
        self._inverse_norms = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
        candidates = [index for index in self._index.values() if any(map(str.isalpha, self.words[index]))]
        self._is_candidate = np.zeros(len(self.words), bool)
        self._is_candidate[candidates] = norms[candidates] > 0

    @classmethod
    def read(cls, path: str, count: int, least_cosine: float, vocabulary: int | None) -> "NearestWords":
        """Read the first `vocabulary` words of a file of vectors; None: all.

        The file is converted once on each machine; its vectors are memory-mapped.
        """
        folder = locate(path)
        words = (folder / "vocab.txt").read_bytes().decode().split("\n")
        file = folder / "model.safetensors"
        with file.open("rb") as stream:  # the file has one tensor, after the header
            header = int.from_bytes(stream.read(8), "little")
            shape = json.loads(stream.read(header))[TABLE]["shape"]
        vectors = np.memmap(file, "<f4", "r", 8 + header, tuple(shape))
        return cls(words[:vocabulary], vectors[:vocabulary], count, least_cosine)

    def __call__(self, word: str) -> tuple[str, ...]:
        index = self._index.get(word)
        if index is None:
            return ()
        if index not in self._neighbours:
            self._find_neighbours(index // _WORDS_AT_ONCE * _WORDS_AT_ONCE)
        return self._neighbours[index]

    def _find_neighbours(self, start: int) -> None:
        """Compute the nearest words of the block of words that begins at `start`."""
        block = slice(start, min(start + _WORDS_AT_ONCE, len(self.words)))
        units = self.vectors[block] * self._inverse_norms[block, None]
        products = np.concatenate([units @ rows.T for rows in self._table_blocks()], axis=1)
        cosines = products * self._inverse_norms
        cosines[:, ~self._is_candidate] = -np.inf
        for index, row in enumerate(cosines, start):
            row[self._index[self._folded[index]]] = -np.inf  # a word is not a synonym of itself
            has_vector = self._inverse_norms[index] > 0
            near = np.flatnonzero(row >= self.least_cosine) if has_vector else np.zeros(0, np.int64)
            nearest = near[np.argsort(-row[near], kind="stable")[: self.count]]
            self._neighbours[index] = tuple(self.words[each] for each in nearest.tolist())

    def _table_blocks(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self.words), _ROWS_AT_ONCE):
            yield self.vectors[start : start + _ROWS_AT_ONCE]
