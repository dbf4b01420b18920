"""Measure a root with many units: time, memory and requests of all operations on the records of its units.

python -m tests.benchmarks.units --units 1000 10000 100000

The records are made up, and there are no rows: the store is a table of names, sizes and records in memory.
For each number of units, a release of all units is followed by one with a tenth of them replaced. A request
is one call to an object store; a listing takes one for every thousand files.
"""

import argparse
import bisect
import gc
import hashlib
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pipeline.config import load_settings
from pipeline.flows.encode.encode import load_records
from pipeline.flows.encode.samples import sample_folder
from pipeline.flows.encode.unit import record_path
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
from pipeline.store.files.base import Entry, Store
from pipeline.store.records.release_units import VectorUnit, store_units
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus, CorpusUnit, UnitRecord
from pipeline.store.releases.manifest import EncoderFiles, IndexFiles, ReleaseManifest
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import size_faults
from tests.benchmarks.machine import machine, print_table

_ROWS, _BYTES = 32_768, 50_000_000
_PAGE = 1_000  # files in one answer to a listing, as in S3


class MadeUpStore(Store):
    """Names and sizes of files, with the content of some, in memory; it counts the requests."""

    def __init__(self) -> None:
        super().__init__("memory://root")
        self.sizes: dict[str, int] = {}
        self.contents: dict[str, bytes] = {}
        self.requests = 0
        self._order: list[str] = []

    def add_made_up(self, reference: FileRef) -> FileRef:
        """Add a file without content."""
        self.sizes[reference.path] = reference.bytes
        return reference

    def read(self, path: str) -> bytes:
        self.requests += 1
        if path not in self.contents:
            raise FileNotFoundError(path)
        return self.contents[path]

    def write(self, path: str, data: bytes) -> None:
        self.requests += 1
        self.sizes[path], self.contents[path] = len(data), data
        self._order = []

    def create(self, path: str, data: bytes) -> bool:
        if path in self.sizes:
            return False
        self.write(path, data)
        return True

    def put(self, local: Path, path: str) -> None:
        self.write(path, local.read_bytes())

    def open(self, path: str, sha256: str | None = None) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    def local(self, path: str, sha256: str | None = None) -> Path:
        raise NotImplementedError

    def entry(self, path: str) -> Entry | None:
        self.requests += 1
        return self._entry(path) if path in self.sizes else None

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        return [entry for page in self.pages(prefix) for entry in page if entry.path.endswith(suffix)]

    def pages(self, prefix: str) -> Iterator[Sequence[Entry]]:
        order = self._order or sorted(self.sizes)
        self._order = order
        start, stop = (bisect.bisect(order, f"{prefix}{end}") for end in ("/", "0"))
        for first in range(start, max(stop, start + 1), _PAGE):
            self.requests += 1
            page = order[first : min(first + _PAGE, stop)]
            yield [self._entry(path) for path in page if path in self.sizes]

    def delete(self, path: str) -> None:
        self.requests += 1
        self.sizes.pop(path, None)
        self.contents.pop(path, None)
        self._order = []

    def _entry(self, path: str) -> Entry:
        # The files are old, so that prune removes them; the file by which the store's clock is read is new.
        return Entry(path, self.sizes[path], "stamp", time.time() if "clock" in path else 0.0)


class Cost(NamedTuple):
    """Cost of one operation."""

    seconds: float
    """CPU time of all threads"""
    mb: float
    """peak of the memory above that at the beginning"""
    requests: int

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.mb:,.0f} MB, {self.requests:,}"


def measure(operation: Callable[[], object], store: MadeUpStore) -> Cost:
    """Run the operation in a fork of this process: only its memory counts, and its changes are lost."""
    gc.collect()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def work() -> None:
        memory, requests, start = _peak_mb(), store.requests, time.process_time()
        kept = operation()
        results.put(Cost(time.process_time() - start, _peak_mb() - memory, store.requests - requests))
        del kept

    process = context.Process(target=work)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"an operation failed with exit code {process.exitcode}")
    return Cost(*results.get())


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


class Root(NamedTuple):
    """A made-up root."""

    store: MadeUpStore
    job: Job
    space_id: str

    def make_release(self, name: str, units: Sequence[int], parent: int | None) -> ReleaseManifest:
        """Make up a candidate with these units, and their files."""
        texts = [self._text(number) for number in units]
        corpus = Corpus(id=name, digest=name, units=tuple(texts), counts={"rows": len(units) * _ROWS})
        content = corpus.to_json()
        self.store.write(f"keys/{name}/corpus.json", content)
        vectors = [self._vectors(text) for text in texts]
        files = IndexFiles(kind="flat", factory="Flat", dim=2, files=())
        sha256 = hashlib.sha256(content).hexdigest()
        return ReleaseManifest(
            parent=parent,
            space_id=self.space_id,
            numerics={},
            rows=corpus.rows,
            units=store_units(self.store, vectors),
            next_ordinal=corpus.next_ordinal,
            index=files,
            ids=(),
            encoder=EncoderFiles(path="encoders/e", files=()),
            corpus=FileRef(path=f"keys/{name}/corpus.json", sha256=sha256, bytes=len(content)),
        )

    def _text(self, number: int) -> CorpusUnit:
        digest = _digest("text", number)
        path = f"units/corpus/{digest[:24]}.parquet"
        self.store.add_made_up(FileRef(path=path, sha256=digest, bytes=_BYTES))
        return CorpusUnit(
            name=f"{number:08d}", ordinal=number, path=path, rows=_ROWS, bytes=_BYTES, sha256=digest
        )

    def _vectors(self, text: CorpusUnit) -> VectorUnit:
        name = f"{self.space_id[:16]}/{text.sha256[:24]}"

        def made_up(folder: str, suffix: str) -> FileRef:
            digest = _digest(folder, text.ordinal)
            path = f"{folder}/{name}-{digest[:12]}{suffix}"
            return self.store.add_made_up(FileRef(path=path, sha256=digest, rows=_ROWS, bytes=_BYTES))

        lengths = {f"length_{8 * bin:05d}": text.ordinal % (bin + 7) for bin in range(24)}
        record = UnitRecord(
            name=f"vectors/{name}",
            **dict(made_up("units/vectors", ".parquet")),
            counts={"rows": _ROWS, "tokens": 40 * _ROWS, "truncated": 0, "quarantined": 0, **lengths},
            space_id=self.space_id,
            numerics_id=_digest("numerics", 0),
            source=text.sha256,
            moments=made_up("moments", ".safetensors"),
            sample=made_up(sample_folder("").rstrip("/"), ".parquet"),
        )
        path = record_path(self.space_id, text, self.job.encode, self.job.corpus.id)
        self.store.write(path, record.to_json())
        return VectorUnit.of(text, record, path)


def _digest(kind: str, number: int) -> str:
    return hashlib.sha256(f"{kind} {number}".encode()).hexdigest()


def costs(count: int, job: Job) -> dict[str, Cost]:
    """Measure all operations on a root of `count` units."""
    root = Root(MadeUpStore(), job, open_folder(job.encoder).space_id)
    found = measure_first_night(root, root.make_release("first", range(count), None))
    found |= measure_later_nights(root)
    Releases(root.store).publish(root.make_release("second", range(count // 10, count + count // 10), 1), str)
    releases = Releases(root.store)
    found["prune, dry run"] = measure(lambda: prune(releases, 1, dry_run=True), root.store)
    found["prune a tenth"] = measure(lambda: prune(releases, 1), root.store)
    return found


def measure_first_night(root: Root, made: ReleaseManifest) -> dict[str, Cost]:
    """Measure the operations of a first night, and publish its release."""
    store, corpus, units = root.store, Corpus.read(root.store, made.corpus), list(made.units)
    releases = Releases(store)
    found = {
        "list": measure(lambda: len(store.list("units")), store),
        "resume a first night": measure(lambda: load_records(store, corpus, root.job, None), store),
        "store the units": measure(lambda: store_units(store, units), store),
        "publish": measure(lambda: releases.publish(made, str), store),
    }
    releases.publish(made, str)
    return found


def measure_later_nights(root: Root) -> dict[str, Cost]:
    """Measure the operations of later nights, and of readers."""
    store, releases = root.store, Releases(root.store)
    corpus = Corpus.read(store, releases.get(1).corpus)
    return {
        "open": measure(releases.current, store),
        "open and read the units": measure(lambda: list(releases.get(1).units), store),
        "resume a later night": measure(
            lambda: load_records(store, corpus, root.job, releases.current()), store
        ),
        "compare sizes": measure(lambda: size_faults(store, releases.get(1)), store),
    }


def main(sizes: Sequence[int]) -> None:
    """Print seconds, memory and requests of every operation for each number of units."""
    job = load_settings(Job, None, ("corpus.uri=/nowhere", "release.root=/nowhere"))
    found = {count: costs(count, job) for count in sizes}
    rows = [(name, *(str(found[count][name]) for count in sizes)) for name in found[sizes[0]]]
    title = f"CPU time, memory and requests; {machine()}"
    print_table(title, rows, ("", *(f"{count:,} units" for count in sizes)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    main(parser.parse_args().units)
