"""Remove rows from an HNSW graph, which faiss cannot do.

Rows that had a link to a removed row get links to that row's neighbours instead, chosen as HNSW chooses links
(algorithm 4 of FreshDiskANN, Singh et al. 2021; algorithm 4 of HNSW, Malkov & Yashunin 2018).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from pipeline.index.library import faiss

NO_LINK = -1  # ends the links of a row on a level
_BLOCK_LINKS = 1 << 24  # links that are compared at once: 64 MiB
_MAX_CANDIDATES = 256  # rows among which the new links of a row are chosen


class _Level(NamedTuple):
    """The links of one row on one level."""

    row: int
    level: int


def remove_from_graph(graph: Any, is_removed: np.ndarray) -> None:
    """Remove rows from an IndexHNSW. The numbers of the others become smaller, and their order stays.

    Args:
        is_removed: (n,) bool; at least one row stays.
    """
    links = GraphLinks(graph)
    links.bypass(is_removed)
    links.compact(~is_removed)
    storage = faiss.downcast_index(graph.storage)
    storage.remove_ids(np.flatnonzero(is_removed))
    graph.ntotal = storage.ntotal


class GraphLinks:
    """The links of an HNSW graph."""

    def __init__(self, graph: Any) -> None:
        self._hnsw, self._storage = graph.hnsw, faiss.downcast_index(graph.storage)
        self._levels = faiss.vector_to_array(graph.hnsw.levels)
        self._offsets = faiss.vector_to_array(graph.hnsw.offsets).astype(np.int64)
        self._level_starts = faiss.vector_to_array(graph.hnsw.cum_nneighbor_per_level).astype(np.int64)
        self._links = faiss.rev_swig_ptr(graph.hnsw.neighbors.data(), graph.hnsw.neighbors.size())

    def bypass(self, is_removed: np.ndarray) -> None:
        """Replace all links to removed rows (n,) bool by links to rows near them."""
        touched = self._levels_with_links_to(is_removed)
        orphans = {level: np.zeros(0, dtype=np.int64) for level in range(len(self._level_starts))}
        for each in touched:
            lost = self._relink(each, is_removed)
            orphans[each.level] = np.union1d(orphans[each.level], lost)
        for level, rows in orphans.items():
            self._reconnect(rows, level, is_removed)
        self._choose_entry_point(is_removed)

    def compact(self, is_kept: np.ndarray) -> None:
        """Drop the rows that are not kept, and number the others from 0."""
        numbers = np.append(np.cumsum(is_kept) - 1, NO_LINK)  # the last one is the number of NO_LINK
        hnsw, lengths = self._hnsw, np.diff(self._offsets)
        is_kept_link = np.repeat(is_kept, lengths)
        links = numbers[self._links[is_kept_link]].astype(np.int32)
        hnsw.entry_point = int(numbers[hnsw.entry_point])
        hnsw.neighbors.resize(len(links))
        faiss.rev_swig_ptr(hnsw.neighbors.data(), len(links))[:] = links
        faiss.copy_array_to_vector(self._levels[is_kept], hnsw.levels)
        offsets = np.concatenate([[0], np.cumsum(lengths[is_kept])]).astype(np.uint64)
        faiss.copy_array_to_vector(offsets, hnsw.offsets)

    def _levels_with_links_to(self, is_removed: np.ndarray) -> list[_Level]:
        """Return the kept rows, each with a level, that have a link to a removed row."""
        found = set[_Level]()
        padded = np.append(is_removed, False)  # NO_LINK is the last one
        for start in range(0, len(self._links), _BLOCK_LINKS):
            positions = start + np.flatnonzero(padded[self._links[start : start + _BLOCK_LINKS]])
            rows = np.searchsorted(self._offsets, positions, side="right") - 1
            levels = np.searchsorted(self._level_starts, positions - self._offsets[rows], side="right") - 1
            kept = ~is_removed[rows]
            found |= {
                _Level(row, level)
                for row, level in zip(rows[kept].tolist(), levels[kept].tolist(), strict=True)
            }
        return sorted(found)

    def _links_of(self, row: int, level: int) -> np.ndarray:
        """Return all positions for links of a row on a level, as a view; NO_LINK after the last one."""
        start = self._offsets[row]
        return self._links[start + self._level_starts[level] : start + self._level_starts[level + 1]]

    def _neighbours(self, row: int, level: int) -> np.ndarray:
        """Return the linked rows (k,)."""
        links = self._links_of(row, level)
        return links[links != NO_LINK]

    def _relink(self, each: _Level, is_removed: np.ndarray) -> np.ndarray:
        """Replace the links of a row to removed rows. Returns the rows that were candidates."""
        links = self._links_of(*each)
        before = self._neighbours(*each)
        kept = before[~is_removed[before]]
        candidates = np.setdiff1d(self._behind(before[is_removed[before]], each.level, is_removed), kept)
        candidates = candidates[candidates != each.row]
        chosen = self._choose(each.row, kept, candidates, len(links) - len(kept))
        links[:] = NO_LINK
        links[: len(kept) + len(chosen)] = np.concatenate([kept, chosen])
        return candidates

    def _behind(self, removed: np.ndarray, level: int, is_removed: np.ndarray) -> np.ndarray:
        """Return the kept rows that are linked from removed rows, directly or through other removed rows."""
        seen, found, waiting = set(removed.tolist()), dict[int, None](), list(removed.tolist())
        while waiting and len(found) < _MAX_CANDIDATES:
            for neighbour in self._neighbours(waiting.pop(0), level).tolist():
                if not is_removed[neighbour]:
                    found[neighbour] = None
                elif neighbour not in seen:
                    seen.add(neighbour)
                    waiting.append(neighbour)
        return np.array(list(found), dtype=np.int64)

    def _choose(self, row: int, kept: np.ndarray, candidates: np.ndarray, most: int) -> list[int]:
        """Choose candidates, nearest first, that are nearer to the row than to each row it is linked to."""
        if not len(candidates) or not most:
            return []
        vectors = self._vectors(np.concatenate([[row], kept, candidates]))
        scores = vectors @ vectors.T
        first = 1 + len(kept)
        to_linked = scores[:, 1:first].max(axis=1, initial=-np.inf)  # to the most similar linked row
        chosen = list[int]()
        for position in first + np.argsort(-scores[0, first:], kind="stable"):
            if to_linked[position] < scores[0, position]:
                chosen.append(int(candidates[position - first]))
                np.maximum(to_linked, scores[position], out=to_linked)
            if len(chosen) == most:
                break
        return chosen

    def _reconnect(self, rows: np.ndarray, level: int, is_removed: np.ndarray) -> None:
        """Give each of the rows (r,) that has no link to it any more one link from a row near it."""
        for row in self._without_link_to(rows, level, is_removed).tolist():
            near = self._neighbours(row, level)
            near = near[~is_removed[near]]
            free = [other for other in near.tolist() if self._links_of(other, level)[-1] == NO_LINK]
            if free or len(near):
                links = self._links_of((free or near.tolist())[0], level)
                links[min(int((links != NO_LINK).sum()), len(links) - 1)] = row

    def _without_link_to(self, rows: np.ndarray, level: int, is_removed: np.ndarray) -> np.ndarray:
        """Return those of the rows that no kept row has a link to on a level."""
        if not len(rows):
            return rows
        is_linked = np.zeros(len(is_removed) + 1, dtype=bool)
        for owners in self._owners(level, is_removed):
            starts = self._offsets[owners] + self._level_starts[level]
            width = self._level_starts[level + 1] - self._level_starts[level]
            is_linked[self._links[starts[:, None] + np.arange(width)]] = True
        return rows[~is_linked[rows]]

    def _owners(self, level: int, is_removed: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the kept rows that have links on a level, in blocks."""
        owners = np.flatnonzero((self._levels > level) & ~is_removed)
        width = max(1, int(self._level_starts[level + 1] - self._level_starts[level]))
        for start in range(0, len(owners), _BLOCK_LINKS // 8 // width):
            yield owners[start : start + _BLOCK_LINKS // 8 // width]

    def _choose_entry_point(self, is_removed: np.ndarray) -> None:
        """Let searches begin at a kept row of the highest level that has one."""
        levels = np.where(is_removed, 0, self._levels)
        if is_removed[self._hnsw.entry_point]:
            self._hnsw.entry_point = int(np.argmax(levels))
        self._hnsw.max_level = int(levels.max()) - 1

    def _vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the stored vectors (n, d) float32 of rows."""
        return np.asarray(self._storage.reconstruct_batch(np.ascontiguousarray(rows, dtype=np.int64)))
