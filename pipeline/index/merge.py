"""Parts filled apart become one index. faiss merges parts that do not fit together without an error, so they
are compared before and looked up after.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import DataError, SpaceMismatch
from pipeline.index.build import read_index
from pipeline.index.library import faiss, prints_to_stderr
from pipeline.index.structure import addresses_of, fingerprint, is_exact, is_fixed, ivf_of, unwrap
from pipeline.store.base import sha256_of

_SCORE_ROUNDING = 1e-4  # between a search of few rows and one of many
_FOUND_SHARE = 0.95  # of a part's rows
_PROBED_LISTS = 16


@dataclass(frozen=True, eq=False)
class Part:
    """A filled part: its file, the rows it must have, and some of its rows, (p,) int64 and (p, d) float32, to
    be looked up after the merge.

    space_id: of its vectors. A faiss file does not know it, and flat parts have no training to tell them
        apart by.
    """

    path: Path
    rows: int
    probe_addresses: np.ndarray
    probe_vectors: np.ndarray
    space_id: str


def merge(parts: Sequence[Part]) -> Any:
    """One index in memory with the rows of all parts, in order; it answers as if all rows had been added to
    one.

    IVF lists are copied from the mapped parts, so memory is that of the result; other kinds need one part
    beside it. SpaceMismatch for parts of two spaces. DataError for parts of different training, lost rows, an
    address that is twice there, and a part whose rows are not found afterwards.
    """
    _check_fit(parts)
    if len(parts) > 1 and _copies_lists(parts[0].path):
        return _checked(_copy_lists(parts), parts)
    index = read_index(parts[0].path, mapped=False)
    for part in parts[1:]:
        index.merge_from(read_index(part.path, mapped=False), 0)  # 0: addresses are global already
    return _checked(index, parts)


def merge_on_disk(parts: Sequence[Part], folder: Path) -> tuple[Any, Path]:
    """One IVF index whose lists stay in a file in `folder`, named by its content; (index, that file).

    Memory does not grow with the rows.

    Write the index beside the file: searchers open it with IO_FLAG_ONDISK_SAME_DIR. Checks as `merge`.
    """
    _check_fit(parts)
    index, mapped = read_index(parts[0].path), [read_index(part.path) for part in parts]
    ivf = ivf_of(index)
    assert ivf is not None
    growing = folder / "growing.ivfdata"
    lists = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, str(growing))
    sources = faiss.InvertedListsPtrVector()
    for part in mapped:
        sources.push_back(unwrap(part).invlists)
    with prints_to_stderr():
        rows = lists.merge_from_multiple(sources.data(), sources.size(), False, False)
    _adopt(index, lists, rows)
    named = growing.rename(folder / f"{sha256_of(growing)[:24]}.ivfdata")
    lists.filename = named.name
    return _checked(index, parts), named


@dataclass
class Duplicates:
    """Addresses seen more than once. Memory is one bit per row: addresses are dense within a unit."""

    count: int = 0
    first: int | None = None
    _seen: dict[int, np.ndarray] = field(default_factory=dict)

    def see(self, addresses: np.ndarray) -> None:
        ordered = np.sort(addresses)
        self._note(ordered[1:][ordered[1:] == ordered[:-1]])
        ordered = np.unique(ordered)
        units, starts = np.unique(ordered >> 32, return_index=True)
        for unit, rows in zip(units.tolist(), np.split(ordered & 0xFFFFFFFF, starts[1:]), strict=True):
            self._see_rows(unit, rows)

    def _see_rows(self, unit: int, rows: np.ndarray) -> None:
        bits = self._seen.get(unit, np.zeros(0, dtype=np.uint8))
        if (missing := int(rows[-1]) // 8 + 1 - len(bits)) > 0:
            bits = np.concatenate([bits, np.zeros(max(missing, len(bits) // 2), dtype=np.uint8)])
        places, masks = rows >> 3, np.left_shift(1, rows & 7).astype(np.uint8)
        self._note((np.int64(unit) << 32) | rows[(bits[places] & masks) != 0])
        np.bitwise_or.at(bits, places, masks)
        self._seen[unit] = bits

    def _note(self, twice: np.ndarray) -> None:
        self.count += len(twice)
        if self.first is None and len(twice):
            self.first = int(twice[0])


def duplicates(blocks: Iterable[np.ndarray]) -> Duplicates:
    """How many of the addresses repeat an earlier one."""
    found = Duplicates()
    for block in blocks:
        found.see(block)
    return found


def _check_fit(parts: Sequence[Part]) -> None:
    if not parts:
        raise DataError("merge", "at least one part", "none", "fill the index first")
    expected = None
    for part in parts:
        if part.space_id != parts[0].space_id:
            both = f"vectors of space {parts[0].space_id}, as {parts[0].path.name}", f"space {part.space_id}"
            raise SpaceMismatch(
                str(part.path), *both, "vectors of two spaces cannot be compared: merge parts of one encoder"
            )
        index = read_index(part.path)
        if len(parts) > 1 and is_fixed(index):
            raise DataError(
                str(part.path),
                "a kind whose parts can be merged",
                type(unwrap(index)).__name__,
                "fill an index of this kind in one part",
            )
        found = fingerprint(index)
        expected = expected or found
        if found != expected:
            remedy = "parts of one index are filled from one trained index: fill this one again"
            raise DataError(
                str(part.path),
                f"the training of {parts[0].path.name} ({expected[:16]})",
                f"another one ({found[:16]})",
                remedy,
            )
        if index.ntotal != part.rows:
            raise DataError(
                str(part.path),
                f"{part.rows:,} rows",
                f"{index.ntotal:,}",
                "the part is incomplete: fill it again",
            )


def _copies_lists(path: Path) -> bool:
    """Whether the parts' lists are plain arrays, one code after the other."""
    index = read_index(path)
    ivf = ivf_of(index)
    return ivf is not None and isinstance(
        faiss.downcast_InvertedLists(ivf.invlists), faiss.ArrayInvertedLists
    )


def _adopt(index: Any, lists: Any, rows: int) -> None:
    """`lists` instead of those that `index` had."""
    ivf = ivf_of(index)
    assert ivf is not None
    ivf.replace_invlists(lists, True)
    lists.this.disown()
    index.ntotal = ivf.ntotal = rows


def _copy_lists(parts: Sequence[Part]) -> Any:
    """Every list at its final size at once, then part after part behind each other."""
    index, sources = read_index(parts[0].path), [read_index(part.path) for part in parts]
    lists = [unwrap(source).invlists for source in sources]
    ivf = ivf_of(index)
    assert ivf is not None
    merged = faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size)
    for number in range(ivf.nlist):
        sizes = [source.list_size(number) for source in lists]
        merged.resize(number, sum(sizes))
        for source, start, size in zip(lists, np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
            if size:
                merged.update_entries(number, start, size, source.get_ids(number), source.get_codes(number))
    _adopt(index, merged, sum(source.ntotal for source in sources))
    return index


def _checked(index: Any, parts: Sequence[Part]) -> Any:
    """`index` itself when all rows of the parts are there, once each, and found."""
    expected = sum(part.rows for part in parts)
    if index.ntotal != expected:
        raise DataError(
            "merged index", f"{expected:,} rows", f"{index.ntotal:,}", "rows were lost: fill the parts again"
        )
    twice = duplicates(addresses_of(index))
    if twice.first is not None:
        unit, row = divmod(twice.first, 1 << 32)
        raise DataError(
            "merged index",
            "every address once",
            f"{twice.count:,} twice, the first of unit {unit}, row {row}",
            "two parts hold the same unit",
        )
    for part in parts:
        _check_found(index, part)
    return index


def _check_found(index: Any, part: Part) -> None:
    """A row of the part finds itself, or one as near: many texts are equal, and coarse codes put others
    first, so no address is asked for.

    Where vectors are kept whole the best score is then 1. Under any codes it is at least that of the part
    alone, since the merged index holds the same codes and more; under a foreign codebook it is not.
    """
    if not len(part.probe_addresses):
        return
    alone, whole = (
        _best_scores(searched, part.probe_vectors)
        for searched in (read_index(part.path, mapped=False), index)
    )
    exact = is_exact(index) and not is_fixed(index)
    share = float((whole >= (np.maximum(alone, 1) if exact else alone) - _SCORE_ROUNDING).mean())
    if share < _FOUND_SHARE:
        remedy = "fill that part again with the trained index of the others"
        raise DataError(
            "merged index",
            f"the rows of {part.path.name} to find themselves or rows as near",
            f"{share:.0%} that do",
            remedy,
        )


def _best_scores(index: Any, queries: np.ndarray) -> np.ndarray:
    ivf = ivf_of(index)
    before = ivf.nprobe if ivf is not None else 0
    if ivf is not None:
        ivf.nprobe = min(_PROBED_LISTS, ivf.nlist)
    scores, _ = index.search(queries, 1)
    if ivf is not None:
        ivf.nprobe = before
    return np.asarray(scores[:, 0])
