"""Copy the encoder into the release: later readers open the copy, and so do workers without a shared disk."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.config import digest_of
from pipeline.flows.workers.workers import Workers
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import with_absolute_paths
from pipeline.settings import EncoderSettings
from pipeline.store.base import Store
from pipeline.store.manifest import EncoderFiles
from pipeline.store.stored import FileRef

_IN_MEMORY = 256 << 20  # bytes; larger files, such as tables of millions of words, are copied on disk
_WRITERS = 8  # files written at once: over a network each takes a round trip


def encoder_copy_path(folder: EncoderFolder) -> str:
    """Return the path of the copy, named by all files of the encoder.

    Files that no vector depends on (prompts, versions) lead to another folder too.
    """
    return f"encoders/{digest_of(dict(folder.files))[:24]}"


def keep_encoder(folder: EncoderFolder, store: Store) -> EncoderFiles:
    """Copy the encoder's files into the store, unless they are there."""
    top = encoder_copy_path(folder)
    stored = {entry.path: entry.size for entry in store.list(top)}

    def copy(named: tuple[str, str]) -> FileRef:
        name, sha256 = named
        file, path = folder.file(name), f"{top}/{name}"
        size = file.stat().st_size
        if stored.get(path) != size:
            if size <= _IN_MEMORY:
                store.write(path, file.read_bytes())
            else:
                with store.scratch() as scratch:
                    store.put(Path(shutil.copyfile(file, scratch / file.name)), path)
        return FileRef(path=name, sha256=sha256, bytes=size)

    with ThreadPoolExecutor(_WRITERS) as pool:
        return EncoderFiles(path=top, files=tuple(pool.map(copy, sorted(folder.files.items()))))


def encoder_for_workers(settings: EncoderSettings, store: Store, workers: Workers) -> EncoderSettings:
    """Return settings of the same encoder with a path that workers on any node can read.

    If the store is remote, that is the release's copy, which workers read through the cache of their node. If
    it is a directory, every node has to see it, and the encoder's folder too.
    """
    if "://" in settings.path or not store.shared or workers.shares_disk:
        return with_absolute_paths(settings)
    return settings.model_copy(update={"path": store.uri_of(keep_encoder(open_folder(settings), store).path)})
