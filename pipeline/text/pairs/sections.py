"""Triples of documents with sections (Ein Dor et al. 2018; Sentence-BERT, Reimers & Gurevych 2019, 4.4)."""

from typing import ClassVar

import numpy as np

from pipeline.text.pairs.builder import BUILDERS, Builder, BuiltTable
from pipeline.text.pairs.grouped import GroupedRows


@BUILDERS.register("sections")
class SectionTriples(Builder):
    """Triples of a text, another text of its section, and a text of another section of the same document.

    A text alone in its section is a negative only. The positive is the next text of the section in a drawn
    order, the negative is drawn. Triples with two equal texts are left out.
    """

    columns: ClassVar[tuple[str, ...]] = ("document", "section", "text")
    group: ClassVar[str] = "document"
    within: ClassVar[str | None] = "section"
    needed: ClassVar[str] = "documents with two sections, one of them with two different texts"

    def build(self, rows: GroupedRows) -> BuiltTable:
        count = len(rows)
        starts = np.flatnonzero(
            (np.diff(rows.groups, prepend=-1) != 0) | np.append(True, rows.within[1:] != rows.within[:-1])
        )
        section = np.searchsorted(starts, np.arange(count), side="right") - 1  # number of each row's section
        sizes = np.diff(starts, append=count)
        start, size = starts[section], sizes[section]
        document_sizes = rows.sizes
        document_start = (np.cumsum(document_sizes) - document_sizes)[rows.groups]
        outside = document_sizes[rows.groups] - size  # texts of the document's other sections
        anchors = np.flatnonzero((size > 1) & (outside > 0))
        positives = (start + (np.arange(count) - start + 1) % size)[anchors]
        negatives = document_start + (rows.draws % np.maximum(outside, 1).astype(np.uint64)).astype(np.int64)
        negatives += np.where(negatives >= start, size, 0)  # skip the texts of the anchor's section
        negatives = negatives[anchors]
        differs = rows.differ(("text", anchors), ("text", positives), ("text", negatives))
        columns = {
            role: rows.texts("text", texts[differs])
            for role, texts in (("anchor", anchors), ("positive", positives), ("negative", negatives))
        }
        sections = np.bincount(rows.groups[starts], minlength=len(document_sizes))
        counts = {
            "documents": len(document_sizes),
            "documents_of_one_section": int((sections == 1).sum()),
            "texts_alone_in_their_section": int((size == 1).sum()),
            "triples_with_equal_texts": int((~differs).sum()),
        }
        return BuiltTable(columns, counts)
