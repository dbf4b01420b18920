"""Sentences of running documents with their neighbours (Skip-Thought, Kiros et al. 2015; FastSent)."""

from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.text.pairs.builder import BUILDERS, Builder, BuiltTable
from pipeline.text.pairs.grouped import GroupedRows


@BUILDERS.register("neighbours")
class NeighbourTriples(Builder):
    """Each sentence of a document with the sentences at the positions before and after it.

    A sentence without one of these, as at the ends of a document or beside a gap, makes no row.
    """

    columns: ClassVar[tuple[str, ...]] = ("document", "position", "text")
    group: ClassVar[str] = "document"
    within: ClassVar[str | None] = "position"
    needed: ClassVar[str] = "documents with three sentences at positions that rise by one"

    def build(self, rows: GroupedRows) -> BuiltTable:
        same_document, steps = np.diff(rows.groups) == 0, np.diff(rows.within)
        if len(twice := np.flatnonzero(same_document & (steps == 0))):
            document = rows.texts("document", twice[:1])[0].as_py()
            raise DataError(
                rows.where,
                "one text at each position of a document",
                f"two at position {rows.within[twice[0]]} of document {document!r}",
                "correct the positions, or give documents of different files different names",
            )
        follows = same_document & (steps == 1)
        middle = np.flatnonzero(follows[:-1] & follows[1:]) + 1
        columns = {
            role: rows.texts("text", middle + offset)
            for role, offset in (("previous", -1), ("text", 0), ("next", 1))
        }
        counts = {
            "documents": len(rows.sizes),
            "sentences_without_two_neighbours": len(rows) - len(middle),
        }
        return BuiltTable(columns, counts)
