"""The disk space that a night needs, part by part, estimated from sizes and row counts.

The corpus is not read.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors import ConfigError
from pipeline.flows.corpus import open_releases
from pipeline.flows.encode.encoder_copy import encoder_copy_path
from pipeline.flows.night.previous import changed_files, load_previous
from pipeline.index.plan import plan_index
from pipeline.log import size
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.local import LocalStore
from pipeline.text.corpus.sources import SourceFile

_TABLE_BYTES = 120  # of one row in the key tables and beside the index: id, text key, address, file, row
_REPORT_BYTES = 1 << 20  # report, manifests and records, which do not grow with the rows
_LINE_BYTES = 100  # of one row while the corpus is read


@dataclass(frozen=True)
class Room:
    """Bytes that a night writes below release.root, by purpose, and the most temporary bytes besides."""

    kept: Mapping[str, int]
    scratch: int

    @property
    def sentence(self) -> str:
        """The sizes of all parts that are not empty."""
        return ", ".join(
            f"{name} {size(count)}" for name, count in {**self.kept, "scratch": self.scratch}.items() if count
        )


def needed(job: Job, store: Store, files: Mapping[SourceFile, int]) -> Room:
    """Estimate the space that tonight needs.

    Files of the previous release are on the disk already and stay there. The first night of a root therefore
    counts the index twice: tomorrow's is written beside it.

    Args:
        files: number of rows of each input file.
    """
    folder, previous = open_folder(job.encoder), load_previous(open_releases(job))
    release = previous.release
    fresh = changed_files(files, previous.corpus if release and release.space_id == folder.space_id else None)
    most = job.corpus.max_rows or sum(files.values())
    every, rows = min(sum(files.values()), most), min(sum(files[file] for file in fresh), most)
    texts, width = sum(file.size for file in fresh), 2 if job.encode.vectors == "float16" else 4
    moments = -(-rows // job.encode.unit_rows) * folder.dim * (folder.dim + 1) * 4  # float64, one triangle
    index, copy = plan_index(max(every, 1), folder.dim, job.index).file_bytes, encoder_copy_path(folder)
    sizes = {f"{copy}/{name}": folder.file(name).stat().st_size for name in folder.files}
    kept = {
        "vectors": rows * folder.dim * width + moments,
        "texts": texts,
        "tables": every * _TABLE_BYTES + (texts if job.corpus.keep else 0),
        "index" if release else "two indexes": index if release else 2 * index,
        "report and samples": _REPORT_BYTES + 2 * job.index.queries * folder.dim * 4,
        "encoder": sum(count for path, count in sizes.items() if store.size(path) != count),
    }
    return Room(kept, max(texts + rows * _LINE_BYTES, index))


def check_room(room: Room, store: Store, root: str) -> str:
    """Describe the free and the needed space.

    Raises:
        ConfigError: there is too little on the root's disk, or on that of temporary files.
    """
    kept, free = sum(room.kept.values()), store.free_bytes()
    if free is not None:
        _check(
            root,
            kept + room.scratch,
            free,
            room,
            "make room (manta releases prune), or choose another release.root",
        )
        return f"{size(free)} free, about {size(kept + room.scratch)} needed: {room.sentence}"
    folder = tempfile.gettempdir()
    free = LocalStore(folder).free_bytes() or 0
    _check(folder, room.scratch, free, room, "make room there, or set TMPDIR to a larger disk")
    return (
        f"an object store: no limit known, about {size(kept)} needed; {size(free)} free for scratch in "
        f"{folder}: {room.sentence}"
    )


def _check(where: str, wanted: int, free: int, room: Room, remedy: str) -> None:
    if free < wanted:
        raise ConfigError(where, f"about {size(wanted)} free ({room.sentence})", size(free), remedy)
