"""Find what is left of rows in files of any kind: ids, texts, kept values, keys, addresses, vectors, codes.

It knows nothing about how rows are erased. It decodes every file by its format, and searches the bytes of
every file, of every decompressed content and of every buffer of a table, also those that a null hides.
"""

import bz2
import contextlib
import datetime
import gzip
import html
import io
import json
import lzma
import re
import urllib.parse
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.erased import codes
from tests.erased.patterns import (
    SHORTEST,
    BytePatterns,
    as_numbers,
    codings_of_bytes,
    codings_of_text,
    digests_of_text,
    find_vectors,
    long_words,
    windows,
)

_PLACES = {"file", "row", "start", "end"}  # columns of corpus units that are not values of a row alone
_MAGIC: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"BZh": bz2.decompress,
    b"\xfd7zXZ\x00": lzma.decompress,
    b"\x28\xb5\x2f\xfd": lambda data: pa.input_stream(pa.BufferReader(data), compression="zstd").read(),
    b"\x78\x01": zlib.decompress,
    b"\x78\x9c": zlib.decompress,
    b"\x78\xda": zlib.decompress,
}


class Trace(NamedTuple):
    """Something of an erased row in a file."""

    path: str
    what: str
    """id, text, word, value, key, address, vector or code; "unreadable" if the file cannot be decoded"""
    found: str
    """what was found"""


@dataclass(frozen=True)
class Sought:
    """Rows that are to be found, or not to be found."""

    patterns: BytePatterns
    values: Mapping[Any, str]
    """short values, with the names of what they are; only equal values of decoded files are found"""
    vectors: np.ndarray
    """(n, d) float32, as the encoder returns them"""
    others: np.ndarray
    """(m, d) float32, vectors of all other rows"""
    addresses: frozenset[int]
    """addresses of the rows"""
    changed: tuple[np.ndarray, ...] = ()
    """the vectors after the transforms of indexes; each (n, d')"""
    codes: BytePatterns = field(default_factory=lambda: BytePatterns(()))

    @classmethod
    def of(cls, root: Path, ids: Iterable[Any], later: Iterable[str] = ()) -> "Sought":
        """Collect all that the units below a root know of some rows and that other rows do not have.

        Args:
            root: a root with all files of these rows; encoders of other releases are in it, too.
            ids: ids of rows, or of documents that were cut into chunks.
            later: texts of other rows that are not in the root yet.
        """
        rows = _rows_of_units(root / "units/corpus")
        names = set(ids)
        is_sought = [row["id"] in names or row.get("parent") in names for row in rows]
        chosen = [row for row, wanted in zip(rows, is_sought, strict=True) if wanted]
        others = [row for row, wanted in zip(rows, is_sought, strict=True) if not wanted]
        missing = names - {row[name] for row in chosen for name in ("id", "parent") if name in row}
        assert not missing, f"not in a unit: {missing}"
        kept = set(map(_hashable, (value for row in others for value in row.values())))
        texts_of_others = "\n".join([*(row["text"] for row in others), *later])
        patterns, values = list[tuple[bytes, str]](), dict[Any, str]()
        for row in chosen:
            for name, value in row.items():
                if name not in _PLACES and _hashable(value) not in kept and value not in (None, ""):
                    what = {"id": "id", "parent": "id", "text": "text", "text_key": "key"}.get(name, "value")
                    cls.add_value(patterns, values, value, what, texts_of_others)
        found = BytePatterns(patterns)
        for file in _files(root / "encoders"):  # an encoder's vocabulary may have the same words
            found = found.without(found.find(file.read_bytes()))
        addresses = _addresses(root / "ids", names)
        values |= {address: "address" for address in addresses if address >> 32}  # others are small numbers
        sought = cls(found, values, *_vectors_of_units(root / "units/vectors", names), addresses)
        return sought.learn(root)

    @staticmethod
    def add_value(
        patterns: list[tuple[bytes, str]], values: dict[Any, str], value: Any, what: str, texts_of_others: str
    ) -> None:
        """Add what to search for, for one value of a row."""
        if isinstance(value, list | dict):
            for each in value.values() if isinstance(value, dict) else value:
                if each not in (None, "") and repr(each) not in texts_of_others:
                    Sought.add_value(patterns, values, each, what, texts_of_others)
        elif isinstance(value, str):
            pieces = [piece for piece in windows(value) if piece not in texts_of_others]
            patterns += [(code, what) for piece in pieces for code in codings_of_text(piece)]
            words = [word for word in long_words(value) if word not in texts_of_others]
            patterns += [(code, "word") for word in words for code in codings_of_text(word)]
            patterns += [
                (digest, "key") for each in digests_of_text(value) for digest in codings_of_bytes(each)
            ]
            values[value] = what
        elif isinstance(value, bytes):
            patterns += [(code, what) for code in codings_of_bytes(value)]
            values[value] = what
        elif isinstance(value, int) and abs(value) >= 1 << 32:
            patterns += [(value.to_bytes(8, order, signed=value < 0), what) for order in ("little", "big")]
            patterns += [(str(value).encode(), what)]
            patterns += [(each, "key") for each in digests_of_text(str(value))]
            values[value] = what
        elif isinstance(value, float | Decimal | datetime.datetime) and len(str(value)) > SHORTEST:
            patterns += [(str(value).encode(), what)]
            values[value] = what

    def learn(self, root: Path) -> "Sought":
        """Add what the indexes below a root make of the vectors: transformed vectors, codes."""
        changed, found = list(self.changed), dict(self.codes.names)
        for file in _files(root):
            if file.suffix != ".faiss":
                continue
            index = codes.read(file)
            for (component, vectors), (_, others) in zip(
                codes.stored(index, self.vectors), codes.stored(index, self.others), strict=True
            ):
                if not any(np.array_equal(vectors, each) for each in changed):
                    changed.append(vectors)
                kept = {row.tobytes() for row in codes.codes(component, others)} if len(others) else set()
                code = {row.tobytes() for row in codes.codes(component, vectors)} - kept
                found |= dict.fromkeys(code, "code")
        return replace(self, changed=tuple(changed), codes=BytePatterns(found.items()))


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, list | dict) else value


def _rows_of_units(folder: Path) -> list[dict[str, Any]]:
    files = [file for file in _files(folder) if file.suffix == ".parquet"]
    tables = [pq.read_table(file) for file in files]
    return [row for table in tables if {"id", "text"} <= set(table.column_names) for row in table.to_pylist()]


def _vectors_of_units(folder: Path, names: set[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of the rows with these ids or parents, and of all others."""
    of_rows: tuple[list[list[float]], list[list[float]]] = ([], [])
    for file in _files(folder):
        if file.suffix == ".parquet" and "vector" in pq.read_schema(file).names:
            table = pq.read_table(file)
            for row in table.to_pylist():
                is_other = row[table.column_names[0]] not in names and row.get("parent") not in names
                of_rows[is_other].append(row["vector"])
    width = max((len(vector) for each in of_rows for vector in each), default=1)
    wanted, others = (np.array(each, np.float32).reshape(-1, width) for each in of_rows)
    return np.unique(wanted, axis=0), np.unique(others, axis=0)


def _addresses(folder: Path, names: set[Any]) -> frozenset[int]:
    """Return the addresses of the rows with these ids or parents, in any file of ids."""
    rows = (row for file in _files(folder) for row in pa.ipc.open_file(file).read_all().to_pylist())
    return frozenset(row["address"] for row in rows if row["id"] in names or row.get("parent") in names)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


def traces(folders: Sequence[Path], sought: Sought) -> list[Trace]:
    """Return all that is left of the rows in the files below some folders, and in their names."""
    found = list[Trace]()
    for folder in folders:
        for file in _files(folder):
            path = file.relative_to(folder).as_posix()
            scan = _Scan(sought, path)
            scan.search_text(path.encode())
            scan.read(file)
            found += sorted(scan.found)
    return found


def places(found: Iterable[Trace]) -> dict[str, Counter[str]]:
    """Count traces by the folder and the ending of their file, and by what they are."""
    counted = dict[str, Counter[str]]()
    for trace in found:
        digits = re.sub(r"[0-9a-f]{16,}|\d{8}", "*", trace.path)
        counted.setdefault(digits, Counter())[trace.what] += 1
    return counted


@dataclass
class _Scan:
    """The search of one file."""

    sought: Sought
    path: str
    found: set[Trace] = field(default_factory=set)

    def add(self, what: str, found: object) -> None:
        self.found.add(Trace(self.path, what, str(found)[:60]))

    def search(self, data: bytes, *, aligned: bool = False) -> None:
        """Search bytes that may contain anything; for `aligned` see `find_vectors`."""
        self.search_text(data)
        for vectors in (self.sought.vectors, *self.sought.changed):
            rows = np.flatnonzero(vectors.any(axis=1))
            for number in find_vectors(data, vectors[rows], aligned=aligned) if len(rows) else ():
                self.add("vector", f"of row {rows[number]}")

    def search_text(self, data: bytes) -> None:
        """Search bytes that contain no vectors."""
        for patterns in (self.sought.patterns, self.sought.codes):
            for pattern in patterns.find(data):
                self.add(patterns.names[pattern], pattern)

    def read(self, file: Path) -> None:
        """Search the content of a file, and decode it by its format."""
        data = file.read_bytes()
        try:
            self.decode(data, file.name)
            if file.suffix == ".faiss":
                self._read_index(file)
        except (pa.ArrowException, ValueError, RuntimeError, OSError, zipfile.BadZipFile) as error:
            self.add("unreadable", error)

    def decode(self, data: bytes, name: str) -> None:
        """Search some content as bytes, and as what it contains."""
        self.search_text(data)
        for magic, decompress in _MAGIC.items():
            if data.startswith(magic):
                try:
                    self.decode(decompress(data), name.removesuffix(".gz"))
                except (OSError, EOFError, zlib.error, lzma.LZMAError):  # other bytes with such a beginning
                    continue
        if data.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for member in archive.namelist():
                    self.decode(archive.read(member), member)
        elif data.startswith(b"PAR1"):
            self._read_table(pq.read_table(io.BytesIO(data)))
        elif data.startswith(b"ARROW1"):
            self._read_table(pa.ipc.open_file(data).read_all())
        elif name.endswith((".json", ".jsonl", ".ndjson")):
            lines = data.decode().splitlines() if not name.endswith(".json") else [data.decode()]
            for line in filter(str.strip, lines):
                self._walk(json.loads(line))
        elif name.endswith((".html", ".htm", ".svg", ".md", ".txt", ".log")):
            self._read_page(data.decode())
        else:
            self.search(data)
            self._read_streams(data)

    def _read_page(self, page: str) -> None:
        """Search the text that a browser shows, and the links of a page."""
        text = html.unescape(page)
        for each in (
            text,
            re.sub(r"<[^<>]*>", "", page),
            re.sub(r"\s+", " ", text),
            urllib.parse.unquote(text),
        ):
            self.search(html.unescape(each).encode())

    def _read_streams(self, data: bytes) -> None:
        """Decode the Arrow streams that are somewhere in the content."""
        start = data.find(b"\xff\xff\xff\xff")
        while start >= 0:
            # four such bytes may be anything
            with contextlib.suppress(pa.ArrowException, ValueError, OSError, MemoryError):
                self._read_table(pa.ipc.open_stream(pa.BufferReader(data[start:])).read_all())
            start = data.find(b"\xff\xff\xff\xff", start + 4)

    def _read_table(self, table: pa.Table) -> None:
        """Search all values of a table, and all of its buffers, in which a value can be behind a null."""
        for key, value in (table.schema.metadata or {}).items():
            self.decode(key + b"\n" + value, "")
        # Dead rows, with the day of their death: it says that nothing is there.
        if table.column_names[:1] == ["address"] and set(table.column_names) <= {"address", "day"}:
            return
        for column in table.columns:
            for chunk in column.chunks:
                for buffer in chunk.buffers():
                    if buffer is not None:
                        self.search(buffer.to_pybytes(), aligned=True)
                self._walk(chunk.to_pylist())

    def _walk(self, value: Any) -> None:
        """Search a value, and all values in it."""
        strings = list[str]()
        self._gather(value, strings)
        self.search_text("\n".join(strings).encode())

    def _gather(self, value: Any, strings: list[str]) -> None:
        """Search a value that is not a string, and all values in it; add strings to `strings`."""
        if isinstance(value, dict):
            for key, each in value.items():
                self._gather(key, strings)
                self._gather(each, strings)
        elif isinstance(value, list | tuple):
            if numbers := as_numbers(value):
                self.search(numbers, aligned=True)
            for each in value:
                self._gather(each, strings)
        elif isinstance(value, str):
            strings.append(value)
            if value in self.sought.values:
                self.add(self.sought.values[value], value)
        elif not isinstance(value, bool) and value is not None and value in self.sought.values:
            self.add(self.sought.values[value], value)

    def _read_index(self, file: Path) -> None:
        """Search the addresses and the codes of an index."""
        index = codes.read(file)
        for address in codes.addresses(index).tolist():
            if address in self.sought.addresses:
                self.add("address", address)
        for (component, vectors), (_, others) in zip(
            codes.stored(index, self.sought.vectors), codes.stored(index, self.sought.others), strict=True
        ):
            kept = {row.tobytes() for row in codes.codes(component, others)} if len(others) else set()
            wanted = {row.tobytes() for row in codes.codes(component, vectors)} - kept
            for code in wanted & {row.tobytes() for row in codes.stored_codes(component)}:
                self.add("code", code)
