"""Cut the rows of a corpus into chunks, each of which becomes a row with an id and a text of its own."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import Settings
from pipeline.errors import DataError, Defect
from pipeline.settings import CHUNK_COLUMNS, CorpusSettings
from pipeline.text.formats.excluded_ids import ExcludingCorpus
from pipeline.text.key_tables.line_numbers import MAX_CHUNKS, chunk_lines

CutTexts = Callable[[Sequence[str]], list[np.ndarray]]
"""Returns the (start, end) of the chunks of each text, (n, 2) int64."""
CutRows = Callable[[pa.Table], pa.Table]
"""Returns the rows of all chunks of some rows, or the same rows if they are not cut."""


class Cutter(Settings):
    """Base class of values that cut the texts of a corpus, and can be sent to workers."""

    space_id: str
    """space of the encoder that the chunks have to fit; for another space, texts may be cut in other ways"""

    def start(self) -> CutTexts:
        """Load the tokenizer, and return the function that cuts texts."""
        raise NotImplementedError


class ChunkedCorpus(ExcludingCorpus):
    """Corpus settings with `chunk`, and with the value that cuts the texts."""

    cutter: Cutter


def row_cutter(corpus: CorpusSettings) -> CutRows:
    """Return the function that cuts rows of a corpus, such as those of `SourceBatch.good`."""
    if corpus.chunk.by is None:
        return lambda rows: rows
    if not isinstance(corpus, ChunkedCorpus):
        raise Defect(corpus.uri, "a ChunkedCorpus, for corpus.chunk", type(corpus).__name__, "report this")
    cut_texts = corpus.cutter.start()
    return lambda rows: _cut_rows(rows, cut_texts, corpus.uri)


def _cut_rows(rows: pa.Table, cut_texts: CutTexts, uri: str) -> pa.Table:
    """Return a row for each chunk.

    A chunk's id is the row's id, # and the number of the chunk in the row. `row` becomes the number of a line
    (see `line_numbers`), and the columns `CHUNK_COLUMNS` are added.
    """
    texts = rows["text"].to_pylist()
    spans = cut_texts(texts)
    counts = np.array([len(of_text) for of_text in spans], dtype=np.int64)
    if len(counts) and counts.max() > MAX_CHUNKS:
        raise DataError(
            f"{uri}: id {rows['id'][int(counts.argmax())].as_py()}",
            f"at most {MAX_CHUNKS:,} chunks of a document",
            f"{counts.max():,}",
            "raise corpus.chunk.max_tokens, or divide the document",
        )
    owners = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts, ends = np.concatenate([np.zeros((0, 2), np.int64), *spans]).T
    chunks = [
        texts[owner][start:end]
        for owner, start, end in zip(owners.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
    cut = rows.take(pa.array(owners)).combine_chunks()
    parents, lines = cut["id"], chunk_lines(cut["row"].to_numpy(), numbers)
    ids = pc.binary_join_element_wise(parents.cast(pa.string()), pa.array(numbers).cast(pa.string()), "#")
    columns = {name: cut[name] for name in cut.column_names}
    columns |= {"id": ids, "text": pa.chunked_array([pa.array(chunks, pa.large_string())]), "row": lines}
    return pa.table(columns | dict(zip(CHUNK_COLUMNS, (parents, starts, ends), strict=True)))
