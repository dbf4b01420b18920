"""Search the parts of an index on the workers, so that no machine needs more than one part at a time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from pipeline.errors import DataError
from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.index.records import NumberedPart, number_parts
from pipeline.flows.workers.tasks import PlainTask, Task
from pipeline.index.build.build import read_index
from pipeline.index.files.parts import Parts, open_parts
from pipeline.index.library import faiss_threads
from pipeline.index.measure.search_effort import candidate_efforts, get_effort, set_effort
from pipeline.index.measure.searched_parts import SearchedParts, best_of
from pipeline.store.files.base import Store
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import IndexPart
from pipeline.store.rows.address import ordinal_of

Result = TypeVar("Result")

# Number of higher efforts that a search tries in the same pass over the parts, for later calls. Choosing an
# effort tries one effort after the other, and every pass opens all parts.
_AHEAD = 3


class PartAnswers(NamedTuple):
    """Answers of one part at one search effort, and the seconds that the search took on one thread."""

    scores: np.ndarray
    addresses: np.ndarray
    seconds: float


class PartFacts(NamedTuple):
    """Properties of one part."""

    rows: int
    """number of its live rows"""
    list_sizes: np.ndarray
    """(nlist,) rows of each list"""
    duplicates: int
    """number of addresses that occur more than once"""
    held: np.ndarray
    """the addresses that were looked up and are in the part, dead rows included"""
    fingerprint: str
    """sha256 of its training"""


@dataclass(frozen=True)
class PartFiles:
    """Reader of the parts of an index."""

    store: Store
    tombstones: FileRef | None = None
    """addresses of dead rows that the parts hold; None if there are none"""

    def open(self, item: NumberedPart) -> Parts:
        """Open one part, without its dead rows. Raises DataError if a file is missing or damaged."""
        dead = item.own_rows(DeadRows(self.store, self.tombstones))
        try:
            return open_parts(item.part.files, lambda file: file.local(self.store), dead)
        except FileNotFoundError as error:
            raise DataError(
                item.part.files[0].path, "a file of the index", "none", f"restore it ({error})"
            ) from None


@dataclass(frozen=True, eq=False)
class SearchPart(PlainTask[NumberedPart, tuple[PartAnswers, ...]]):
    """Search one part for the k nearest live rows, at several search efforts."""

    files: PartFiles
    vectors: np.ndarray
    k: int
    efforts: tuple[int | None, ...]

    def work(self, item: NumberedPart) -> tuple[PartAnswers, ...]:
        parts, answers = self.files.open(item), []
        with faiss_threads(1):
            for effort in self.efforts:
                if effort is not None:
                    set_effort(parts, effort)
                start = time.perf_counter()
                scores, addresses = parts.search(self.vectors, self.k)
                answers.append(PartAnswers(scores, addresses, time.perf_counter() - start))
        return tuple(answers)


@dataclass(frozen=True, eq=False)
class TimePart(PlainTask[NumberedPart, np.ndarray]):
    """Time single queries in one part, in milliseconds."""

    files: PartFiles
    vectors: np.ndarray
    effort: int | None

    def work(self, item: NumberedPart) -> np.ndarray:
        parts = self.files.open(item)
        if self.effort is not None:
            set_effort(parts, self.effort)
        return parts.query_ms(self.vectors)


@dataclass(frozen=True, eq=False)
class DescribePart(PlainTask[NumberedPart, PartFacts]):
    """Count and check the rows of one part."""

    files: PartFiles
    addresses: np.ndarray
    """rows that are looked up in the part"""

    def work(self, item: NumberedPart) -> PartFacts:
        parts = self.files.open(item)
        lowest, highest = item.first_ordinal, item.part.next_ordinal
        held = [np.zeros(0, dtype=np.int64)]
        for block in parts.addresses():
            ordinals = ordinal_of(block)
            if ordinals.min() < lowest or ordinals.max() >= highest:
                raise DataError(
                    item.part.files[0].path,
                    f"rows of the units {lowest} to {highest - 1}",
                    f"rows of the units {ordinals.min()} to {ordinals.max()}",
                    "remove indexes/work below the root and run again",
                )
            held.append(block[np.isin(block, self.addresses)])
        [fingerprint] = parts.fingerprints()
        return PartFacts(
            parts.ntotal, parts.list_sizes(), parts.duplicates(), np.concatenate(held), fingerprint
        )


class PartsOnWorkers(SearchedParts):
    """Parts of an index that tasks open and search, one part at a time on each worker.

    Parts are of consecutive units, so rows of two parts never have the same address.
    """

    def __init__(
        self,
        context: FlowContext,
        files: PartFiles,
        parts: Sequence[IndexPart],
        trained: FileRef,
        asked: np.ndarray,
    ) -> None:
        """Keep the references to the parts. Tasks open the parts to search them or to count their rows.

        Args:
            trained: the index without rows, in which the search effort is set.
            asked: (n,) int64, the addresses with which `holds` may be called.
        """
        self.indexes = (read_index(trained.local(context.store), mapped=False),)
        self._context, self._files, self._parts = context, files, number_parts(parts)
        self._asked = asked
        self._answers: dict[tuple[str, int, int | None], PartAnswers] = {}
        self._searched_s = 0.0

    @cached_property
    def _facts(self) -> tuple[PartFacts, ...]:
        """The counts of the parts. Raises DataError if a file is damaged, or has rows of other units."""
        return self._map(DescribePart(self._files, self._asked))

    @property
    def ntotal(self) -> int:
        """Number of live rows."""
        return sum(facts.rows for facts in self._facts)

    def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Search for the k nearest live rows; the next higher efforts are searched in the same pass."""
        effort, digest = get_effort(self), sha256(vectors.tobytes()).hexdigest()
        if (digest, k, effort) not in self._answers:
            efforts: list[int | None] = [effort]
            if effort is not None:
                higher = (each for each in candidate_efforts(self) if each > effort)
                efforts += islice(higher, _AHEAD)
            by_part = self._map(SearchPart(self._files, vectors, k, tuple(efforts)))
            for tried, answers in zip(efforts, zip(*by_part, strict=True), strict=True):
                scores, addresses = best_of([(each.scores, each.addresses) for each in answers], k)
                seconds = sum(each.seconds for each in answers)
                self._answers[digest, k, tried] = PartAnswers(scores, addresses, seconds)
        found = self._answers[digest, k, effort]
        self._searched_s += found.seconds
        return found.scores, found.addresses

    def search_lists(self, vectors: np.ndarray, k: int, nprobe: int) -> tuple[np.ndarray, np.ndarray]:
        """Search as `search` does, with `nprobe` as the effort."""
        effort = get_effort(self)
        assert effort is not None
        set_effort(self, nprobe)
        try:
            return self.search(vectors, k)
        finally:
            set_effort(self, effort)

    def holds(self, addresses: np.ndarray) -> np.ndarray:
        """Return a mask (n,) of the addresses (n,) that are in the index, dead rows included."""
        return np.isin(addresses, np.concatenate([facts.held for facts in self._facts]))

    def duplicates(self) -> int:
        """Return the number of addresses that repeat another one."""
        return sum(facts.duplicates for facts in self._facts)

    def list_sizes(self) -> np.ndarray:
        """Return the number of rows (nlist,) of each list, all parts together."""
        return np.sum([facts.list_sizes for facts in self._facts], axis=0)

    def fingerprints(self) -> set[str]:
        """Return the fingerprints of the parts: one, if they have the same training."""
        return {facts.fingerprint for facts in self._facts}

    def query_ms(self, vectors: np.ndarray) -> np.ndarray:
        """Time each of the queries (n, d) alone, in one part after the other, in milliseconds (n,)."""
        return np.sum(self._map(TimePart(self._files, vectors, get_effort(self))), axis=0)

    def clock(self) -> float:
        """Return the seconds that searches would have taken on one thread."""
        return self._searched_s

    def _map(self, task: Task[NumberedPart, Result]) -> tuple[Result, ...]:
        return map_in_order(self._context, task, self._parts)
