"""Write the files of one part of an index again, without some of its rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.index.build.build import read_index, remove, write_index
from pipeline.index.erase.graph import remove_from_graph
from pipeline.index.erase.lists_file import write_lists_without
from pipeline.index.erase.training import TrainingChange
from pipeline.index.library import faiss
from pipeline.index.lists import is_one_of, remove_from_lists
from pipeline.index.refine import id_map_of
from pipeline.index.structure import addresses_of, unwrap


def erase_from_part(
    files: Sequence[Path],
    addresses: np.ndarray,
    folder: Path,
    change: TrainingChange | None = None,
) -> tuple[int, tuple[Path, ...]]:
    """Write a part of an index again without rows.

    Codes and order of the other rows stay, so they have the same scores. An HNSW index may answer otherwise,
    since its graph has other links where rows are missing, and so may an index whose training is changed.

    Args:
        files: the part's index file and, for lists on disk, the file of the lists, in one folder under the
            names by which the index refers to them.
        addresses: (n,) int64 of rows to leave out; others are ignored.
        folder: for the new files.
        change: change of the training, the same for all parts of an index.

    Returns:
        The number of rows that the part had of these, and the files without them: `files` if it had none and
        the training stays, and no file if it had no other rows.
    """
    change = change or TrainingChange.none()
    on_disk, is_erased = len(files) > 1, is_one_of(addresses)
    held = sum(int(is_erased(block).sum()) for block in addresses_of(read_index(files[0], on_disk=on_disk)))
    if not held and not change:
        return 0, tuple(files)
    index = read_index(files[0], mapped=False, on_disk=on_disk)
    if held == index.ntotal:
        return held, ()
    if on_disk:
        lists = write_lists_without(index, addresses, folder, change.apply(index))
        written: tuple[Path, ...] = (folder / "index.faiss", lists)
    else:
        if held:
            remove_rows(index, addresses)
        change.apply_in_memory(index)
        written = (folder / "index.faiss",)
    write_index(index, folder / "index.faiss")
    return held, written


def remove_rows(index: Any, addresses: np.ndarray) -> None:
    """Remove some, but not all, rows from an index of any kind that has its lists in memory."""
    ann = unwrap(index)
    if hasattr(ann, "hnsw"):
        _remove_from_hnsw(index, ann, addresses)
    elif isinstance(ann, faiss.IndexIVFFastScan):
        remove_from_lists(ann, is_one_of(addresses))
        index.ntotal = ann.ntotal
    else:
        remove(index, addresses)


def _remove_from_hnsw(index: Any, graph: Any, addresses: np.ndarray) -> None:
    id_map = id_map_of(index)
    assert id_map is not None
    before = faiss.vector_to_array(id_map.id_map)
    is_removed = is_one_of(addresses)(before)
    if not is_removed.any():
        return
    remove_from_graph(graph, is_removed)
    faiss.copy_array_to_vector(before[~is_removed], id_map.id_map)
    index.ntotal = id_map.ntotal = graph.ntotal
    id_map.construct_rev_map()
