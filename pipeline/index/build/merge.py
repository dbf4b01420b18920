"""Merge separately filled shards into one index.

faiss does not notice shards of different trainings. So shards are compared before the merge, and some of
their rows (the probes) are searched for after it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import DataError, SpaceMismatch
from pipeline.index.build.build import read_index
from pipeline.index.library import faiss, prints_to_stderr
from pipeline.index.refine import id_map_of, index_refine_of, merge_refined
from pipeline.index.search_parameters import ivf_parameters
from pipeline.index.structure import (
    addresses_of,
    fingerprint,
    is_append_only,
    is_exact,
    ivf_of,
    lists_of,
    nlist_of,
    to_space_of,
    unwrap,
)
from pipeline.store.files.base import sha256_of
from pipeline.store.rows.address import describe, ordinal_of, row_of

_SCORE_ROUNDING = 1e-4  # scores of searches among few rows and among many differ by rounding
_MIN_FOUND = 0.95  # proportion of a shard's probes that the merged index must find
_PROBED_LISTS = (16, 256)  # nprobe of the search for probes; the second if too few are found


@dataclass(frozen=True, eq=False)
class FilledShard:
    """A shard of an index, filled and on this machine."""

    path: Path
    """the shard's faiss file"""
    rows: int
    """number of rows that the file must hold"""
    probe_addresses: np.ndarray
    """(p,) int64, rows that are searched for after the merge"""
    probe_vectors: np.ndarray
    """(p, d) float32, their vectors"""
    space_id: str
    """space of the vectors: `merge` checks it, because flat shards have no training in which they differ"""


def merge(shards: Sequence[FilledShard]) -> Any:
    """Merge shards, in order, into one index in memory.

    The result answers like an index to which all rows were added. IVF lists are copied from mapped files, so
    that only the result is in memory; other kinds need memory for the result and one shard.

    Raises:
        SpaceMismatch: the shards are of two spaces.
        DataError: the shards differ in training, rows are lost, an address occurs twice, or the probes of a
            shard are not found.
    """
    _check_shards_match(shards)
    if len(shards) > 1 and _has_array_lists(shards[0].path):
        index = _copy_lists(shards)
    else:
        index = read_index(shards[0].path, mapped=False)
        for shard in shards[1:]:
            other = read_index(shard.path, mapped=False)
            if index_refine_of(index) is not None:
                merge_refined(index, other)
            else:
                index.merge_from(other, 0)  # 0: keep addresses, they are global
    _check_merged(index, shards)
    return index


def merge_on_disk(shards: Sequence[FilledShard], folder: Path) -> tuple[Any, Path]:
    """Merge shards into one IVF index whose lists are in a file in `folder`, named by its content.

    Memory does not grow with the rows. The caller has to write the index into the same folder, because faiss
    opens the lists from there (IO_FLAG_ONDISK_SAME_DIR).

    Returns:
        The index, and the file of its lists.

    Raises:
        SpaceMismatch, DataError: as in `merge`.
    """
    _check_shards_match(shards)
    index = read_index(shards[0].path)
    mapped_shards = [read_index(shard.path) for shard in shards]
    ivf = unwrap(index)
    unnamed_file = folder / "growing.ivfdata"
    lists = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, str(unnamed_file))
    sources = faiss.InvertedListsPtrVector()
    for shard in mapped_shards:
        sources.push_back(unwrap(shard).invlists)
    with prints_to_stderr():
        # False: addresses are not shifted; False: progress is not printed.
        rows = lists.merge_from_multiple(sources.data(), sources.size(), False, False)
    _replace_lists(index, lists, rows)
    lists_file = unnamed_file.rename(folder / f"{sha256_of(unnamed_file)[:24]}.ivfdata")
    lists.filename = lists_file.name
    _check_merged(index, shards)
    return index, lists_file


def count_duplicates(blocks: Iterable[np.ndarray]) -> tuple[int, int | None]:
    """Return the number of addresses that repeat an earlier one, and the first of them.

    A bitmap records the addresses: a bit for each row of a unit, because row numbers of a unit are dense.
    """
    bitmap = _Bitmap()
    count, first = 0, None
    for block in blocks:
        addresses = np.sort(block)
        repeats = np.zeros(len(addresses), dtype=bool)
        repeats[1:] = addresses[1:] == addresses[:-1]
        repeats |= bitmap.add(addresses)
        count += int(repeats.sum())
        if first is None and repeats.any():
            first = int(addresses[repeats][0])
    return count, first


class _Bitmap:
    """A set of addresses, one bit each.

    All units have the same number of bits, which grows with the row numbers.
    """

    def __init__(self) -> None:
        self._unit_bytes = 1 << 12
        self._bits = np.zeros((0, self._unit_bytes), dtype=np.uint8)
        self._positions = np.zeros(0, dtype=np.int64)  # by ordinal of a unit: its line in the bitmap, or -1

    def add(self, addresses: np.ndarray) -> np.ndarray:
        """Add addresses (n,) int64. Returns a mask (n,): True for addresses that an earlier call added."""
        if not len(addresses):
            return np.zeros(0, dtype=bool)
        ordinals, rows = ordinal_of(addresses), row_of(addresses)
        self._grow(np.unique(ordinals), int(rows.max()) >> 3)
        bits = self._bits.reshape(-1)
        offsets = self._positions[ordinals] * self._unit_bytes + (rows >> 3)
        masks = np.left_shift(1, rows & 7).astype(np.uint8)
        was_added = (bits[offsets] & masks) != 0
        np.bitwise_or.at(bits, offsets, masks)
        return was_added

    def _grow(self, ordinals: np.ndarray, last_byte: int) -> None:
        """Make room for units, and for their rows up to the byte `last_byte`."""
        if last_byte >= self._unit_bytes:
            wider = 1 << last_byte.bit_length()
            self._bits = np.pad(self._bits, ((0, 0), (0, wider - self._unit_bytes)))
            self._unit_bytes = wider
        if (missing := int(ordinals[-1]) + 1 - len(self._positions)) > 0:
            self._positions = np.pad(self._positions, (0, missing), constant_values=-1)
        new = ordinals[self._positions[ordinals] < 0]
        if len(new):
            unit_count = int(self._positions.max(initial=-1)) + 1
            self._positions[new] = unit_count + np.arange(len(new))
            if (missing := unit_count + len(new) - len(self._bits)) > 0:
                self._bits = np.pad(self._bits, ((0, max(missing, len(self._bits) // 2)), (0, 0)))


def _check_shards_match(shards: Sequence[FilledShard]) -> None:
    if not shards:
        raise DataError("merge", "at least one shard", "none", "fill the index first")
    first = shards[0]
    expected = fingerprint(read_index(first.path))
    for shard in shards:
        where, index = str(shard.path), read_index(shard.path)
        if shard.space_id != first.space_id:
            raise SpaceMismatch(
                where,
                f"vectors of space {first.space_id}, as {first.path.name}",
                f"space {shard.space_id}",
                "vectors of two spaces cannot be compared: merge shards of one encoder",
            )
        if len(shards) > 1 and is_append_only(index):
            raise DataError(
                where,
                "a kind whose shards can be merged",
                type(unwrap(index)).__name__,
                "fill an index of this kind in one shard",
            )
        if (found := fingerprint(index)) != expected:
            raise DataError(
                where,
                f"the training of {first.path.name} ({expected[:16]})",
                f"another one ({found[:16]})",
                "fill this shard again from the trained index of the others",
            )
        if index.ntotal != shard.rows:
            raise DataError(
                where, f"{shard.rows:,} rows", f"{index.ntotal:,}", "the shard is incomplete: fill it again"
            )


def _has_array_lists(path: Path) -> bool:
    """Return whether a shard is an IVF index whose lists hold addresses, in arrays that can be copied."""
    index = read_index(path)
    ivf = ivf_of(index)
    return (
        ivf is not None
        and index_refine_of(index) is None
        and isinstance(lists_of(ivf), faiss.ArrayInvertedLists)
    )


def _replace_lists(index: Any, lists: Any, rows: int) -> None:
    """Hand `lists`, which hold `rows` rows, over to the IVF index inside `index`."""
    ivf = unwrap(index)
    ivf.replace_invlists(lists, True)
    lists.this.disown()
    index.ntotal = ivf.ntotal = rows


def _copy_lists(shards: Sequence[FilledShard]) -> Any:
    """Allocate every list at its final size, and copy the shards into it one after the other."""
    index = read_index(shards[0].path)
    mapped_shards = [read_index(shard.path) for shard in shards]
    sources = [unwrap(shard).invlists for shard in mapped_shards]
    ivf = unwrap(index)
    merged = faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size)
    for number in range(ivf.nlist):
        sizes = [source.list_size(number) for source in sources]
        merged.resize(number, sum(sizes))
        start = 0
        for source, size in zip(sources, sizes, strict=True):
            if size:
                merged.update_entries(number, start, size, source.get_ids(number), source.get_codes(number))
            start += size
    _replace_lists(index, merged, sum(shard.ntotal for shard in mapped_shards))
    return index


def _check_merged(index: Any, shards: Sequence[FilledShard]) -> None:
    """Check that a merged index holds every row of the shards once, and that it finds their probes."""
    if index.ntotal != (expected := sum(shard.rows for shard in shards)):
        raise DataError(
            "merged index", f"{expected:,} rows", f"{index.ntotal:,}", "rows were lost: fill the shards again"
        )
    count, first = count_duplicates(addresses_of(index))
    if first is not None:
        raise DataError(
            "merged index",
            "every address once",
            f"{count:,} repeated, the first of them {describe(first)}",
            "two shards hold the same unit: fill them again, with every unit in one shard",
        )
    for shard in shards:
        _check_probes(index, shard)


def _check_probes(index: Any, shard: FilledShard) -> None:
    """Check that a search for each probe of a shard finds the probe, or another row with the same score.

    Addresses are not compared, because many texts are equal and coarse codes may rank other rows first. If
    vectors are stored uncompressed, the best score must be the score of the probe with itself: 1, or less if
    transforms of a factory string shorten the vectors. With codes, the best score must be at least the best
    score in the shard alone: the merged index has the same codes and more, unless its codebook is different.
    A refined index scores only a few candidates by its second codes, so it is searched among the probes only.
    """
    if not len(shard.probe_addresses):
        return
    alone, found = read_index(shard.path, mapped=False), 0.0
    for nprobe in _PROBED_LISTS if nlist_of(index) else (0,):
        found = _found(index, alone, shard, nprobe)
        if found >= _MIN_FOUND:
            return
    raise DataError(
        "merged index",
        f"{_MIN_FOUND:.0%} of the probes of {shard.path.name} to be found",
        f"{found:.0%}",
        "fill that shard again with the trained index of the others",
    )


def _found(index: Any, alone: Any, shard: FilledShard, nprobe: int) -> float:
    """Return the proportion of the probes that are found, if nprobe lists are visited for each."""
    score = _best_scores if index_refine_of(index) is None else _best_scores_among_probes
    nprobe = min(nprobe, nlist_of(index))
    expected, best = score(alone, shard, nprobe), score(index, shard, nprobe)
    if is_exact(index) and not is_append_only(index):
        vectors = to_space_of(index, shard.probe_vectors)
        expected = np.maximum(expected, np.einsum("pd,pd->p", vectors, vectors))
    return float((best >= expected - _SCORE_ROUNDING).mean())


def _best_scores(index: Any, shard: FilledShard, nprobe: int) -> np.ndarray:
    """Return the best score (p,) of each probe among all rows."""
    parameters = ivf_parameters(index, nprobe) if nprobe else None
    return np.asarray(index.search(shard.probe_vectors, 1, params=parameters)[0][:, 0])


def _best_scores_among_probes(index: Any, shard: FilledShard, nprobe: int) -> np.ndarray:
    """Return the best scores (2 p,) of each probe among the probes: by second codes, then by the codes in the
    lists.
    """
    vectors, id_map = shard.probe_vectors, id_map_of(index)
    assert id_map is not None
    selector = faiss.IDSelectorBatch(shard.probe_addresses)
    refined = index.search(vectors, len(vectors), params=ivf_parameters(index, nprobe, selector))[0]
    vectors = to_space_of(index, vectors)
    rows = faiss.IDSelectorTranslated(id_map.id_map, selector)
    in_lists = unwrap(index).search(vectors, 1, params=faiss.SearchParametersIVF(nprobe=nprobe, sel=rows))[0]
    return np.concatenate([refined[:, 0], in_lists[:, 0]])
