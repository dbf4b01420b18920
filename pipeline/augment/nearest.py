"""Find the nearest words of a word by exact cosines of word vectors.

Only the neighbours of words that texts contain are computed, once in each worker.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipeline.models.folder.locate import locate
from pipeline.models.folder.word_vectors import TABLE

# words looked up together: neighbours in the file have similar frequencies, so they occur together
_BLOCK = 32
_ROWS = 8_192  # of the table in one product: 10 MB with 300 dimensions


@dataclass
class NearestWords:
    """A function from a case-folded word to its nearest words by cosine, nearest first.

    Equally near words are in the order of the file. Of words that differ in case only, the first one counts.
    Words without a letter are never neighbours. Cosines are computed in fixed blocks of the table, so that
    they have the same bits whichever words were looked up before.
    """

    words: list[str]
    vectors: np.ndarray
    """(n, d) float32, as in the file, from which they may be mapped"""
    count: int
    """number of nearest words at most"""
    least_cosine: float
    """least cosine of a nearest word"""
    _found: dict[int, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._folded = [word.casefold() for word in self.words]
        self._index: dict[str, int] = {}
        for index, word in enumerate(self._folded):
            self._index.setdefault(word, index)
        lengths = np.concatenate([np.linalg.norm(rows, axis=1) for rows in self._table_blocks()])
        self._scale = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        candidates = [index for index in self._index.values() if any(map(str.isalpha, self.words[index]))]
        self._is_candidate = np.zeros(len(self.words), bool)
        self._is_candidate[candidates] = lengths[candidates] > 0

    @classmethod
    def of(cls, path: str, count: int, least_cosine: float, vocabulary: int | None) -> "NearestWords":
        """Read the first words of a file of vectors. It is converted once on this machine, then mapped."""
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
        if index not in self._found:
            self._find(index // _BLOCK * _BLOCK)
        return self._found[index]

    def _find(self, start: int) -> None:
        """Find the neighbours of the block of words that begins at `start`."""
        block = slice(start, min(start + _BLOCK, len(self.words)))
        own = self.vectors[block] * self._scale[block, None]
        cosines = np.concatenate([own @ rows.T for rows in self._table_blocks()], axis=1) * self._scale
        cosines[:, ~self._is_candidate] = -np.inf
        for index, row in enumerate(cosines, start):
            row[self._index[self._folded[index]]] = -np.inf
            near = np.flatnonzero(row >= self.least_cosine) if self._scale[index] else np.zeros(0, np.int64)
            nearest = near[np.argsort(-row[near], kind="stable")[: self.count]]
            self._found[index] = tuple(self.words[each] for each in nearest.tolist())

    def _table_blocks(self) -> Iterator[np.ndarray]:
        return (self.vectors[start : start + _ROWS] for start in range(0, len(self.words), _ROWS))
