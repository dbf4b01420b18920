"""Rows sorted by group, in an order that does not depend on the files or on the order of their rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.store.rows.arrays import one_chunk
from pipeline.text.normalize import blake2b_digests


class GroupRoles(NamedTuple):
    """Roles by which rows are grouped and sorted; see `Builder`."""

    group: str
    within: str | None
    text: str


@dataclass(frozen=True, eq=False)
class GroupedRows:
    """All rows of some groups, sorted by group, then by `within`, then by `draws`.

    Rows of a group that are equal in `within` and text occur once.
    """

    table: pa.Table
    """columns by role, each of one chunk"""
    groups: np.ndarray
    """(n,) int64: number of each row's group, from 0, ascending"""
    within: np.ndarray
    """(n,) int64 or uint64: the value of the role `within`, or a hash of a name; 0 without such a role"""
    draws: np.ndarray
    """(n,) uint64: a random number for each text, which depends on the text and the seed only"""
    labels: tuple[str, ...]
    """names of the labels"""
    where: str
    """URI of the files, for errors"""

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def sizes(self) -> np.ndarray:
        """(groups,) int64: number of rows of each group."""
        return np.bincount(self.groups)

    def texts(self, role: str, rows: np.ndarray) -> pa.Array:
        """Return the texts of a role in the rows with the given numbers, (m,)."""
        return one_chunk(self.table[role]).take(pa.array(rows))

    def differ(self, *texts: tuple[str, np.ndarray]) -> np.ndarray:
        """Return (m,) bool: whether the i-th texts of all pairs differ from each other.

        Args:
            texts: pairs of a role and (m,) row numbers.
        """
        joined = pa.concat_arrays([self.texts(role, rows) for role, rows in texts])
        codes = np.sort(_codes(joined).reshape(len(texts), -1), axis=0)
        return np.asarray((np.diff(codes, axis=0) != 0).all(axis=0))


def seeded_hashes(strings: pa.Array, seed: int, use: str) -> np.ndarray:
    """(n,) uint64: blake2b-64 of each string, keyed by the seed and by `use`, the purpose of the hashes."""
    digests = blake2b_digests(strings, 8, f"{use} {seed}".encode())
    hashes = np.frombuffer(digests.buffers()[1], dtype=">u8", count=len(digests))
    return np.asarray(hashes, np.uint64)


def group_rows(
    table: pa.Table, roles: GroupRoles, seed: int, labels: Sequence[str], where: str
) -> GroupedRows:
    """Sort rows by group, and leave out repeated ones.

    Args:
        table: columns by role, and `hash`, uint64: a hash of the group, by which groups are sorted.
        roles: roles of the columns that decide the order.
        seed: seed of the draws.
        labels: names of the labels.
        where: URI of the files, for errors.
    """
    table = table.combine_chunks()
    groups, texts = (_codes(table[role]) for role in (roles.group, roles.text))
    draws = seeded_hashes(one_chunk(table[roles.text]), seed, "draw")
    within = _within(table, roles.within)
    order = np.lexsort([texts, draws, within, groups, table["hash"].to_numpy()])
    keys = np.stack([column[order].view(np.int64) for column in (groups, within, texts)])
    is_new = np.ones(len(order), bool)
    is_new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    order = order[is_new]
    starts = np.ones(len(order), bool)
    starts[1:] = np.diff(groups[order]) != 0
    return GroupedRows(
        table=table.take(pa.array(order)),
        groups=np.cumsum(starts) - 1,
        within=within[order],
        draws=draws[order],
        labels=tuple(labels),
        where=where,
    )


def _within(table: pa.Table, role: str | None) -> np.ndarray:
    """Return `GroupedRows.within` for the rows of a table."""
    if role is None:
        return np.zeros(len(table), np.int64)
    column = one_chunk(table[role])
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)
    return seeded_hashes(column, 0, "within")


def _codes(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """(n,) int64: a code for each string; equal strings have equal codes."""
    return np.asarray(one_chunk(column).dictionary_encode().indices.to_numpy(zero_copy_only=False), np.int64)
