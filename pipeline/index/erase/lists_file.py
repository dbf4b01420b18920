"""Copy the inverted lists that are in a file of their own, without some of their rows."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.index.erase.training import Recode
from pipeline.index.library import faiss
from pipeline.index.lists import codes_in, ids_in, is_one_of
from pipeline.index.structure import lists_of, unwrap
from pipeline.store.files.base import sha256_of


def write_lists_without(index: Any, addresses: np.ndarray, folder: Path, recode: Recode) -> Path:
    """Copy the lists of an index to a new file, without some rows, and let the index refer to that file.

    The file has nothing between the lists. Memory holds one list at a time.

    Args:
        addresses: (n,) int64 of the rows to leave out.
        folder: for the file, which is named by its content. The index must be written there, too.
        recode: gives the codes to write.
    """
    ivf = unwrap(index)
    lists, is_removed = lists_of(ivf), is_one_of(addresses)
    extents, end, rows = faiss.OnDiskOneListVector(), 0, 0
    unnamed_file = folder / "growing.ivfdata"
    with unnamed_file.open("wb") as file:
        for number in range(ivf.nlist):
            is_kept = ~is_removed(ids_in(lists, number))
            ids, codes = ids_in(lists, number)[is_kept], codes_in(lists, number)[is_kept]
            codes = recode(number, ids, codes)
            file.write(codes.tobytes())
            file.write(ids.tobytes())
            extent = faiss.OnDiskOneList()
            extent.size = extent.capacity = len(ids)
            extent.offset = end
            extents.push_back(extent)
            end += codes.nbytes + ids.nbytes
            rows += len(ids)
    lists_file = unnamed_file.rename(folder / f"{sha256_of(unnamed_file)[:24]}.ivfdata")
    copied = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, str(folder / lists_file.name))
    copied.lists.swap(extents)
    copied.totsize, copied.filename = end, lists_file.name
    ivf.replace_invlists(copied, True)
    copied.this.disown()
    index.ntotal = ivf.ntotal = rows
    return lists_file
