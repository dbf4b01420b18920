"""Two roots over the same nights, compared: rows by id, every file that the current releases name by path and
bytes, counts, quarantine, and answers.

Some differences are allowed. A number that was reserved and never committed is skipped, and with it the
ordinals of its manifest. From then on addresses differ, and files that contain addresses (tables of rows, the
index, ids) cannot be equal in bytes: their rows are compared instead, with addresses translated to (unit,
row). Files of units, vectors, records, moments and quarantined rows contain no addresses and are equal in
every case. Manifests and reports contain measured times, and commits contain the time.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.index.search.search import open_release
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.dead import Dead
from pipeline.store.records.units import Corpus
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import files_of
from pipeline.store.rows.schema import vector_matrix
from tests.text.ingest.tables import key_lines, text_lines

# Files that contain addresses, and files of quarantined rows, whose names contain the id of the corpus, which
# depends on ordinals.
_ADDRESSED = re.compile(r"(keys|indexes|ids)/.*|quarantine/[^/]*")
_RANKS = 10


@dataclass
class Differences:
    """Counts of rows that are lost, of rows that are doubled or should be dead, and of everything else that
    differs.
    """

    lost: int = 0
    doubled: int = 0
    differing: int = 0
    rows: int = 0
    files: int = 0
    shifted: bool = False
    """whether ordinals differ, because a number was reserved and not committed"""
    messages: list[str] = field(default_factory=list)

    def add(self, kind: str, names: Iterable[Any], description: str) -> None:
        """Add named differences to the count `kind`, and a message if there are any."""
        found = list(names)
        if found:
            setattr(self, kind, getattr(self, kind) + len(found))
            self.messages.append(f"{description}: {len(found)}, such as {sorted(map(str, found))[:4]}")


@dataclass
class Root:
    """The current release of a root, with all files that it names.

    Attributes:
        doubled: ids of more than one live row, known as soon as `rows` is read.
    """

    uri: str
    doubled: list[str] = field(default_factory=list)

    @cached_property
    def store(self) -> Store:
        return open_store(self.uri)

    @cached_property
    def manifest(self) -> ReleaseManifest:
        found = Releases(self.store).current()
        assert found is not None
        return found

    @cached_property
    def corpus(self) -> Corpus:
        found = Corpus.load(self.store, self.manifest.corpus.path)
        assert found is not None
        return found

    @cached_property
    def rows(self) -> dict[str, tuple[bytes, bytes]]:
        """Live rows by id, as (text key, vector), read from the Parquet files."""
        dead, found = Dead.load(self.store, self.manifest.dead), {}
        for unit in self.manifest.units:
            table = pq.read_table(self.store.open(unit.path, unit.sha256))
            numbers = np.delete(np.arange(unit.rows + len(unit.dropped)), unit.dropped)
            live = np.flatnonzero(~np.isin(numbers, dead.rows_of(unit.ordinal)))
            vectors = vector_matrix(table["vector"])
            for row, key, index in zip(
                table["id"].take(live).to_pylist(),
                table["text_key"].take(live).to_pylist(),
                live,
                strict=True,
            ):
                if row in found:
                    self.doubled.append(row)
                found[row] = (key, vectors[index].tobytes())
        return found

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Every file that the release and its corpus need, by path."""
        return {file.path: self.store.read(file.path) for file in files_of(self.store, self.manifest)}

    @cached_property
    def ordinals(self) -> tuple[int, ...]:
        return tuple(unit.ordinal for unit in self.manifest.units)

    def counts(self) -> dict[str, int]:
        """Return the counts, except those that depend on how the vectors were made."""
        return {
            name: count
            for name, count in self.manifest.counts.items()
            if name not in ("encoded", "reused", "truncated", "tokens")
        }

    def quarantined(self) -> list[tuple[Any, ...]]:
        """Return every quarantined row with its reason, from the corpus and from the encoder."""
        references = [self.corpus.quarantine, *(unit.quarantine for unit in self.manifest.units)]
        tables = [
            pq.read_table(self.store.open(reference.path, reference.sha256)).to_pylist()
            for reference in references
            if reference
        ]
        return sorted(tuple(map(str, row.values())) for rows in tables for row in rows)

    def content_address(self, address: int | None) -> str | None:
        """Return an address as the sha256 of its unit and the row."""
        if address is None:
            return None
        unit = next(unit for unit in self.corpus.units if unit.ordinal == address >> 32)
        return f"{unit.sha256[:16]}/{address & 0xFFFFFFFF}"

    def tables(self) -> dict[str, Counter[Any]]:
        """Key table, text table, dead rows and ids with their addresses translated, in no order."""
        living = set(self.ordinals)
        ids = [
            pa.ipc.open_file(self.store.open(ref.path, ref.sha256)).read_all().to_pylist()
            for ref in self.manifest.ids
        ]
        dead = Dead.load(self.store, self.manifest.dead).addresses.tolist()
        return {
            "key table": Counter(
                (row["id"], row["text_key"], row["file"], row["row"], self.content_address(row["address"]))
                for bucket in self.corpus.keys
                for row in key_lines(self.store, bucket)
            ),
            "text table": Counter(
                (row["text_key"], self.content_address(row["address"]))
                for row in text_lines(self.store, self.corpus)
                if row["address"] >> 32 in living
            ),
            "dead rows": Counter(map(self.content_address, dead)),
            "ids": Counter((row["id"], self.content_address(row["address"])) for rows in ids for row in rows),
        }

    def answers(self, queries: np.ndarray) -> list[list[tuple[float, str]]]:
        """Return (score, id) of the nearest rows of each query, in increasing order.

        Rows with the lowest score are left out, because any row of this score may be the tenth.
        """
        table = open_release(self.uri).search(queries, _RANKS)
        found: list[list[tuple[float, str]]] = [[] for _ in queries]
        for row in table.to_pylist():
            found[row["query"]].append((round(row["score"], 5), row["id"]))
        return [sorted(answer for answer in each if answer[0] > min(each)[0] + 2e-5) for each in found]


def compare(disturbed: str, undisturbed: str) -> Differences:
    """Compare the current releases of two roots."""
    first, other = Root(disturbed), Root(undisturbed)
    found = Differences(
        rows=len(other.rows), files=len(other.files), shifted=first.ordinals != other.ordinals
    )
    found.add("lost", other.rows.keys() - first.rows.keys(), "rows lost")
    found.add("doubled", first.rows.keys() - other.rows.keys(), "rows that should not live")
    found.add("doubled", first.doubled, "ids twice")
    found.add(
        "differing",
        (row for row in first.rows.keys() & other.rows.keys() if first.rows[row] != other.rows[row]),
        "rows with another text or vector",
    )
    _compare_files(first, other, found)
    counts = first.counts(), other.counts()
    found.add(
        "differing",
        (name for name in counts[0].keys() | counts[1].keys() if counts[0].get(name) != counts[1].get(name)),
        "counts",
    )
    if first.manifest.counts["total"] != first.manifest.rows + first.manifest.counts["quarantined"]:
        found.add("differing", ["total"], "total is not rows + quarantined")
    found.add(
        "differing",
        (Counter(first.quarantined()) - Counter(other.quarantined()))
        + (Counter(other.quarantined()) - Counter(first.quarantined())),
        "quarantined rows",
    )
    queries = np.stack(
        [
            np.frombuffer(vector, np.float32)
            for _, vector in list(other.rows.values())[:: max(1, len(other.rows) // 40)]
        ]
    )
    answers = zip(first.answers(queries), other.answers(queries), strict=True)
    found.add(
        "differing", (number for number, (one, two) in enumerate(answers) if one != two), "answers of queries"
    )
    return found


def _compare_files(first: Root, other: Root, found: Differences) -> None:
    """Compare files by path and bytes; if ordinals differ, compare files with addresses by their rows."""
    names = [
        {path for path in root.files if not found.shifted or not _ADDRESSED.fullmatch(path)}
        for root in (first, other)
    ]
    if found.shifted:
        tables = first.tables(), other.tables()
        found.add(
            "differing",
            (name for name in tables[0] if tables[0][name] != tables[1][name]),
            "tables by their rows",
        )
    found.add("differing", names[0] ^ names[1], "files that one release names and the other does not")
    found.add(
        "differing",
        (path for path in names[0] & names[1] if first.files[path] != other.files[path]),
        "files of the same name and other bytes",
    )
