"""Merge parts that were filled separately into one index.

faiss merges parts that do not belong together without an error, so they are compared before the merge, and
some of their rows are searched for after it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import DataError, SpaceMismatch
from pipeline.index.build import read_index
from pipeline.index.library import faiss, prints_to_stderr
from pipeline.index.structure import (
    addresses_of,
    fingerprint,
    is_exact,
    is_fixed,
    ivf_of,
    list_search,
    lists_of,
    nlist_of,
    unwrap,
)
from pipeline.store.address import describe, ordinal_of, row_of
from pipeline.store.base import sha256_of

_SCORE_ROUNDING = 1e-4  # between a search for few rows and one for many
_LEAST_FOUND = 0.95  # proportion of a part's probes
_PROBED_LISTS = 16


@dataclass(frozen=True, eq=False)
class Part:
    """A filled part of an index.

    Attributes:
        path: its faiss file.
        rows: number of rows that it must hold.
        probe_addresses: (p,) int64, rows that are searched for after the merge.
        probe_vectors: (p, d) float32.
        space_id: space of its vectors. A faiss file does not name it, and flat parts have no training by
            which they could be distinguished.
    """

    path: Path
    rows: int
    probe_addresses: np.ndarray
    probe_vectors: np.ndarray
    space_id: str


def merge(parts: Sequence[Part]) -> Any:
    """Merge parts, in order, into one index in memory that answers as if all rows had been added to it.

    IVF lists are copied from mapped files, so only the result is in memory; other kinds need one part beside
    it.

    Raises:
        SpaceMismatch: the parts are of two spaces.
        DataError: the parts differ in training, rows are lost, an address occurs twice, or the rows of a part
            are not found afterwards.
    """
    _check_fit(parts)
    if len(parts) > 1 and _copies_lists(parts[0].path):
        return _checked(_copy_lists(parts), parts)
    index = read_index(parts[0].path, mapped=False)
    for part in parts[1:]:
        index.merge_from(read_index(part.path, mapped=False), 0)  # 0: addresses are global already
    return _checked(index, parts)


def merge_on_disk(parts: Sequence[Part], folder: Path) -> tuple[Any, Path]:
    """Merge parts into one IVF index whose lists stay in a file in `folder`, named by its content.

    Memory does not grow with the rows. Write the index beside the file: searchers open it with
    IO_FLAG_ONDISK_SAME_DIR.

    Returns:
        The index, and the file of its lists.

    Raises:
        SpaceMismatch, DataError: as `merge`.
    """
    _check_fit(parts)
    index, mapped = read_index(parts[0].path), [read_index(part.path) for part in parts]
    ivf = unwrap(index)
    growing = folder / "growing.ivfdata"
    lists = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, str(growing))
    sources = faiss.InvertedListsPtrVector()
    for part in mapped:
        sources.push_back(unwrap(part).invlists)
    with prints_to_stderr():
        rows = lists.merge_from_multiple(sources.data(), sources.size(), False, False)
    _replace_lists(index, lists, rows)
    named = growing.rename(folder / f"{sha256_of(growing)[:24]}.ivfdata")
    lists.filename = named.name
    return _checked(index, parts), named


def count_duplicates(blocks: Iterable[np.ndarray]) -> tuple[int, int | None]:
    """Return the number of addresses that repeat an earlier one, and the first of them.

    Memory is one bit per row, because the addresses of a unit are dense.
    """
    seen: dict[int, np.ndarray] = {}
    count, first = 0, None
    for block in blocks:
        addresses, times = np.unique(block, return_counts=True)
        repeated = [np.repeat(addresses, times - 1)]
        units, starts = np.unique(ordinal_of(addresses), return_index=True)
        for unit, own in zip(units.tolist(), np.split(addresses, starts[1:]), strict=True):
            positions, masks = row_of(own) >> 3, np.left_shift(1, own & 7).astype(np.uint8)
            bits = seen.get(unit, np.zeros(0, dtype=np.uint8))
            if (missing := int(positions[-1]) + 1 - len(bits)) > 0:
                bits = np.pad(bits, (0, max(missing, len(bits) // 2)))
            repeated.append(own[(bits[positions] & masks) != 0])
            np.bitwise_or.at(bits, positions, masks)
            seen[unit] = bits
        found = np.concatenate(repeated)
        count += len(found)
        if first is None and len(found):
            first = int(found[0])
    return count, first


def _check_fit(parts: Sequence[Part]) -> None:
    if not parts:
        raise DataError("merge", "at least one part", "none", "fill the index first")
    first = parts[0]
    expected = fingerprint(read_index(first.path))
    for part in parts:
        where, index = str(part.path), read_index(part.path)
        if part.space_id != first.space_id:
            both = f"vectors of space {first.space_id}, as {first.path.name}", f"space {part.space_id}"
            raise SpaceMismatch(
                where, *both, "vectors of two spaces cannot be compared: merge parts of one encoder"
            )
        if len(parts) > 1 and is_fixed(index):
            raise DataError(
                where,
                "a kind whose parts can be merged",
                type(unwrap(index)).__name__,
                "fill an index of this kind in one part",
            )
        if (found := fingerprint(index)) != expected:
            both = f"the training of {first.path.name} ({expected[:16]})", f"another one ({found[:16]})"
            raise DataError(
                where, *both, "parts of one index are filled from one trained index: fill this one again"
            )
        if index.ntotal != part.rows:
            raise DataError(
                where, f"{part.rows:,} rows", f"{index.ntotal:,}", "the part is incomplete: fill it again"
            )


def _copies_lists(path: Path) -> bool:
    """Return whether the lists of a part are plain arrays, one code after the other."""
    index = read_index(path)
    ivf = ivf_of(index)
    return ivf is not None and isinstance(lists_of(ivf), faiss.ArrayInvertedLists)


def _replace_lists(index: Any, lists: Any, rows: int) -> None:
    ivf = unwrap(index)
    ivf.replace_invlists(lists, True)
    lists.this.disown()
    index.ntotal = ivf.ntotal = rows


def _copy_lists(parts: Sequence[Part]) -> Any:
    """Allocate every list at its final size, and copy the parts into it one after the other."""
    index, sources = read_index(parts[0].path), [read_index(part.path) for part in parts]
    lists = [unwrap(source).invlists for source in sources]
    ivf = unwrap(index)
    merged = faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size)
    for number in range(ivf.nlist):
        sizes = [source.list_size(number) for source in lists]
        merged.resize(number, sum(sizes))
        for source, start, size in zip(lists, np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
            if size:
                merged.update_entries(number, start, size, source.get_ids(number), source.get_codes(number))
    _replace_lists(index, merged, sum(source.ntotal for source in sources))
    return index


def _checked(index: Any, parts: Sequence[Part]) -> Any:
    """Return `index` after checking that it holds every row of the parts once and finds them."""
    if index.ntotal != (expected := sum(part.rows for part in parts)):
        raise DataError(
            "merged index", f"{expected:,} rows", f"{index.ntotal:,}", "rows were lost: fill the parts again"
        )
    count, first = count_duplicates(addresses_of(index))
    if first is not None:
        raise DataError(
            "merged index",
            "every address once",
            f"{count:,} twice, the first of {describe(first)}",
            "two parts hold the same unit",
        )
    for part in parts:
        _check_found(index, part)
    return index


def _check_found(index: Any, part: Part) -> None:
    """Check that the probes of a part find themselves or rows that are as near.

    Addresses are not compared, because many texts are equal and coarse codes may rank other rows first. If
    vectors are stored as they are, the best score must be 1. With codes, it must be at least the best score
    in the part alone: the merged index holds the same codes and more, unless their codebook is another one.
    """
    if not len(part.probe_addresses):
        return
    alone = _best_scores(read_index(part.path, mapped=False), part.probe_vectors)
    if is_exact(index) and not is_fixed(index):
        alone = np.maximum(alone, 1)
    found = float((_best_scores(index, part.probe_vectors) >= alone - _SCORE_ROUNDING).mean())
    if found < _LEAST_FOUND:
        raise DataError(
            "merged index",
            f"the rows of {part.path.name} to find themselves or rows as near",
            f"{found:.0%} that do",
            "fill that part again with the trained index of the others",
        )


def _best_scores(index: Any, queries: np.ndarray) -> np.ndarray:
    nlist = nlist_of(index)
    scores, _ = index.search(
        queries, 1, params=list_search(index, min(_PROBED_LISTS, nlist)) if nlist else None
    )
    return np.asarray(scores[:, 0])
