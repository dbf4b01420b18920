"""A corpus of documents that is cut into chunks and edited night after night, with its oracle."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.settings import ChunkSettings
from pipeline.store.records.dead import Dead
from pipeline.store.records.units import Changes, Corpus
from pipeline.text.ingest.chunking import ChunkedCorpus, Cutter, CutTexts
from pipeline.text.normalize import text_keys
from tests.text.ingest.editing import Nights
from tests.text.ingest.tables import key_lines, text_lines

Chunk = tuple[str, str, str | None, str, int, int, str, int]
"""(id, text, lang, parent, start, end, file, row)"""


class WordCutter(Cutter):
    """Cuts after every `size` words."""

    size: int

    def start(self) -> CutTexts:
        return self._cut

    def _cut(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([span[:2] for span in spans_of(text, self.size)]) for text in texts]


def spans_of(text: str, size: int) -> list[tuple[int, int]]:
    """(start, end) of each chunk of `size` words."""
    words, spans, position = text.split(), [], 0
    for first in range(0, len(words), size):
        start = end = text.index(words[first], position)
        for word in words[first : first + size]:
            end = text.index(word, end) + len(word)
        spans.append((start, end))
        position = end
    return spans


class CutNights(Nights):
    """Nights over documents that are cut into chunks of `size` words; None does not cut them."""

    def __init__(self, folder: Path, size: int | None = 2, unit_rows: int = 4) -> None:
        super().__init__(folder, unit_rows=unit_rows)
        self.plain = self.corpus
        self.cut_at(size)

    def cut_at(self, size: int | None) -> None:
        self.size = size
        if size is None:
            self.corpus = self.plain
            return
        settings = dict(self.plain) | {"chunk": ChunkSettings(by="tokens")}
        self.corpus = ChunkedCorpus(**settings, cutter=WordCutter(space_id=str(size), size=size))

    def chunks(self) -> set[Chunk]:
        """Return the live chunks: those of the first document of each id by file name and row."""
        assert self.size is not None
        return {
            (f"{row_id}#{number}", text[start:end], lang, row_id, start, end, name, row)
            for row_id, (text, lang, name, row) in self.expected().items()
            for number, (start, end) in enumerate(spans_of(text, self.size))
        }


def live_chunks(nights: CutNights, ingested: Corpus) -> dict[int, Chunk]:
    """Read the live chunks from the units, by address."""
    dead, live = Dead.load(nights.store, ingested.dead), {}
    for unit in ingested.units:
        rows = pq.read_table(nights.store.open(unit.path, unit.sha256)).to_pylist()
        dead_rows = set(dead.rows_of(unit.ordinal).tolist())
        assert len(dead_rows) == unit.dead < unit.rows == len(rows)
        names = ("id", "text", "lang", "parent", "start", "end", "file", "row")
        live |= {
            unit.ordinal << 32 | number: tuple(row[name] for name in names)
            for number, row in enumerate(rows)
            if number not in dead_rows
        }
    return live


def check_chunks(nights: CutNights, ingested: Corpus, before: dict[int, Chunk]) -> dict[int, Chunk]:
    """Compare chunks, tables, counts and quarantine with the oracle; returns the chunks by address."""
    live, expected = live_chunks(nights, ingested), nights.expected()
    assert len(live) == len(nights.chunks()) == ingested.rows == ingested.counts["chunks"]
    assert without_place(live.values()) == without_place(nights.chunks())
    documents = sum(map(len, nights.files.values()))
    duplicates = ingested.counts.get("quarantined_duplicate_id", 0)
    assert ingested.counts["rows"] == documents
    assert ingested.counts["good"] == len(expected)
    assert documents == len(expected) + ingested.counts["quarantined"]

    lines = [line for bucket in ingested.keys for line in key_lines(nights.store, bucket)]
    addresses = {line["id"]: line["address"] for line in lines if line["address"] is not None}
    assert addresses == {chunk[0]: address for address, chunk in live.items()}
    texts = {line["address"]: line["text_key"] for line in text_lines(nights.store, ingested)}
    assert {address: texts[address] for address in live} == {
        address: text_keys(pa.array([chunk[1]]))[0].as_py() for address, chunk in live.items()
    }

    quarantined = (
        pq.read_table(nights.store.open(ingested.quarantine.path)).to_pylist() if ingested.quarantine else []
    )
    all_rows = {(name, number) for name, rows in nights.files.items() for number in range(len(rows))}
    winners = {(name, number) for _, _, name, number in expected.values()}
    assert sorted((row["file"], row["row"]) for row in quarantined) == sorted(all_rows - winners)
    refused = [row for row in quarantined if row["reason"] == "duplicate_id"]
    assert len(refused) == duplicates
    for row in refused:
        _, _, name, number = expected[row["id"]]
        assert nights.files[row["file"]][row["row"]][0] == row["id"]
        assert row["detail"] == f"{name} row {number} has it first"

    if not ingested.rebuild_reason:
        contents_before = {chunk[:6]: address for address, chunk in before.items()}
        contents = {chunk[:6]: address for address, chunk in live.items()}
        unchanged = contents_before.keys() & contents.keys()
        assert all(contents[content] == contents_before[content] for content in unchanged)
        then, now = {chunk[0] for chunk in before.values()}, {chunk[0] for chunk in live.values()}
        assert ingested.changes == Changes(
            new=len(now - then),
            changed=len(then & now) - len(unchanged),
            deleted=len(then - now),
            unchanged=len(unchanged),
        )
    return live


def without_place(chunks) -> list:
    """Sort the chunks without file and row: an unchanged chunk keeps those that it was read from first."""
    return sorted((chunk[:6] for chunk in chunks), key=str)
