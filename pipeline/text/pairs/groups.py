"""Pairs of texts of a group, such as captions of a picture or questions with the same answer."""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from pipeline.text.pairs.builder import BUILDERS, Builder, BuiltTable
from pipeline.text.pairs.grouped import GroupedRows


@BUILDERS.register("groups")
class GroupPairs(Builder):
    """Pairs of two different texts of a group, in a drawn order of its texts.

    Each text is paired with the next one in that order, then with the next but one and so on; after the
    last text comes the first one again. So all texts of a group occur equally often, or nearly, whatever
    `most` is.
    """

    columns: ClassVar[tuple[str, ...]] = ("group", "text")
    group: ClassVar[str] = "group"
    needed: ClassVar[str] = "groups with two different texts"

    most: Annotated[int, Field(ge=1)] = 10
    """largest number of pairs of one group; a group of n texts has n (n - 1) / 2"""

    def build(self, rows: GroupedRows) -> BuiltTable:
        sizes = rows.sizes
        starts = np.cumsum(sizes) - sizes
        pairs = np.zeros((0, 2), np.int64)
        for size in np.unique(sizes[sizes > 1]):
            of_size = starts[sizes == size][:, None, None] + _round_the_group(int(size), self.most)
            pairs = np.concatenate([pairs, of_size.reshape(-1, 2)])
        anchors, positives = pairs[np.argsort(rows.groups[pairs[:, 0]], kind="stable")].T
        columns = {"anchor": rows.texts("text", anchors), "positive": rows.texts("text", positives)}
        return BuiltTable(columns, {"groups": len(sizes), "groups_of_one_text": int((sizes == 1).sum())})


def _round_the_group(size: int, most: int) -> np.ndarray:
    """(pairs, 2) int64: positions of the first `most` pairs of a group of `size` texts, nearest first."""
    numbers = np.arange(min(most, size * (size - 1) // 2))
    first, distance = numbers % size, numbers // size + 1
    return np.stack([first, (first + distance) % size], axis=1)
