"""The release's own copy of its encoder: what a later reader opens, and what workers load where they share no
disk with the driver.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.config import digest_of
from pipeline.flows.workers.workers import Workers
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import anywhere
from pipeline.settings import EncoderSettings
from pipeline.store.base import Store
from pipeline.store.local import LocalStore
from pipeline.store.manifest import EncoderFiles
from pipeline.store.units import FileRef

_IN_MEMORY = (
    256 << 20
)  # bytes of a file; a table of millions of words has more than a driver may have to spare
_WRITERS = 8  # files written at once: over a network each waits for an answer


def encoder_place(folder: EncoderFolder) -> str:
    """Where the copy of an encoder's files is kept: by all of them, since files that no vector depends on
    (prompts, versions) make another folder too.
    """
    return f"encoders/{digest_of(dict(folder.files))[:24]}"


def keep_encoder(folder: EncoderFolder, store: Store) -> EncoderFiles:
    """The release's own copy of the encoder's files, stored once."""
    top = encoder_place(folder)
    there = {entry.path: entry.size for entry in store.list(top)}

    def kept(named: tuple[str, str]) -> FileRef:
        name, sha256 = named
        file = folder.file(name)
        size = file.stat().st_size
        if there.get(f"{top}/{name}") != size:
            _store(file, size, store, f"{top}/{name}")
        return FileRef(path=name, sha256=sha256, bytes=size)

    with ThreadPoolExecutor(_WRITERS) as pool:
        return EncoderFiles(path=top, files=tuple(pool.map(kept, sorted(folder.files.items()))))


def _store(file: Path, size: int, store: Store, path: str) -> None:
    if size <= _IN_MEMORY:
        store.write(path, file.read_bytes())
        return
    with store.scratch() as scratch:
        store.put(Path(shutil.copyfile(file, scratch / file.name)), path)


def encoder_for_workers(settings: EncoderSettings, store: Store, workers: Workers) -> EncoderSettings:
    """Return the same encoder as workers on any node can load it; its space stays.

    Where the releases are remote, workers do not need this machine's disk: a folder, a packaged model or a
    hub id is read from the copy that the release keeps anyway, through the cache of the node. Where the root
    is a directory, every node has to see it, and the encoder's folder likewise.
    """
    if "://" in settings.path or isinstance(store, LocalStore) or workers.shares_disk:
        return anywhere(settings)
    kept = keep_encoder(open_folder(settings), store)
    return settings.model_copy(update={"path": store.uri_of(kept.path)})
