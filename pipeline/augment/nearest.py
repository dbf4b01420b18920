"""Words whose vectors are near each other, by blocks of exact products: only those that a text asks for are computed, and once in a worker."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.errors import ModelError
from pipeline.models.folder.locate import locate
from pipeline.models.folder.vectorfile import read_vectors
from pipeline.models.folder.word_vectors import TABLE

_ASKED = 32  # rows of one product: words of like frequency stand side by side and occur in the same texts
_ROWS = 8_192  # of the table in one product: with 300 dimensions 10 MB


def check_vectors(file: Path, name: str) -> None:
    """ModelError where the beginning of the file holds no word vectors."""
    if next(read_vectors(file, name), None) is None:
        raise ModelError(name, "word vectors", "an empty file", "give another file")


@dataclass
class Nearest:
    """Case-folded word -> the nearest other words by cosine, nearest first, equally near ones in the file's order. Of words that differ in case alone the first counts.

    Rows are computed in fixed blocks of the table, so that a word's neighbours have the same digits whatever was asked for before. What has no letter is no neighbour.
    """

    words: list[str]
    vectors: np.ndarray
    """(n, d) float32, as they are in the file, which they may be mapped from"""
    count: int
    least_cosine: float
    _found: dict[int, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._folded = [word.casefold() for word in self.words]
        self._places: dict[str, int] = {}
        for place, word in enumerate(self._folded):
            self._places.setdefault(word, place)
        lengths = np.concatenate(
            [
                np.linalg.norm(self.vectors[start : start + _ROWS], axis=1)
                for start in range(0, len(self.words), _ROWS)
            ]
        )
        self._scale = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        first = (self._places[word] == place for place, word in enumerate(self._folded))
        lettered = (any(map(str.isalpha, word)) for word in self.words)
        self._usable = np.fromiter(map(all, zip(first, lettered, strict=True)), bool, len(self.words)) & (
            lengths > 0
        )

    @classmethod
    def of(cls, path: str, count: int, least_cosine: float, vocabulary: int | None) -> "Nearest":
        """Of the first words of a file of vectors, which is read once on this machine (`pipeline.models.folder.locate`) and mapped."""
        folder = locate(path)
        words = (folder / "vocab.txt").read_bytes().decode().split("\n")
        file = folder / "model.safetensors"
        with file.open("rb") as stream:  # of one tensor, which stands behind the header
            header = int.from_bytes(stream.read(8), "little")
            shape = json.loads(stream.read(header))[TABLE]["shape"]
        return cls(
            words[:vocabulary],
            np.memmap(file, "<f4", "r", 8 + header, tuple(shape))[:vocabulary],
            count,
            least_cosine,
        )

    def __call__(self, word: str) -> tuple[str, ...]:
        place = self._places.get(word)
        if place is None:
            return ()
        if place not in self._found:
            self._find(place // _ASKED * _ASKED)
        return self._found[place]

    def _find(self, start: int) -> None:
        """The neighbours of the block of words that begins at `start`."""
        asked = slice(start, min(start + _ASKED, len(self.words)))
        own = self.vectors[asked] * self._scale[asked, None]
        cosines = (
            np.concatenate(
                [own @ self.vectors[first : first + _ROWS].T for first in range(0, len(self.words), _ROWS)],
                axis=1,
            )
            * self._scale
        )
        cosines[:, ~self._usable] = -np.inf
        for place, row in enumerate(cosines, start):
            row[self._places[self._folded[place]]] = -np.inf
            near = np.flatnonzero(row >= self.least_cosine)
            nearest = near[np.argsort(-row[near], kind="stable")[: self.count]]
            self._found[place] = (
                tuple(self.words[each] for each in nearest.tolist()) if self._scale[place] else ()
            )
