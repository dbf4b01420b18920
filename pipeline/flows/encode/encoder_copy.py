"""Copy the encoder into the store, for readers of the release and for workers that do not share a disk."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.config import digest_of
from pipeline.flows.workers.interface import Workers
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import with_absolute_paths
from pipeline.settings import EncoderSettings
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import EncoderFiles

_MAX_IN_MEMORY = 256 << 20  # bytes; larger files, such as tables of millions of words, are copied on disk
_WRITERS = 8  # files written at once, since each write over a network waits for an answer


def encoder_copy_path(folder: EncoderFolder) -> str:
    """Return the path of the encoder's copy, named by a digest of all its files.

    The digest includes files on which no vector depends, such as prompts.
    """
    return f"encoders/{digest_of(dict(folder.files))[:24]}"


def keep_encoder(folder: EncoderFolder, store: Store) -> EncoderFiles:
    """Copy the encoder's files into the store, except files that are there already."""
    root = encoder_copy_path(folder)
    stored = {entry.path: entry.size for entry in store.list(root)}

    def copy(name: str) -> FileRef:
        file, path = folder.file(name), f"{root}/{name}"
        size = file.stat().st_size
        if stored.get(path) != size:
            if size <= _MAX_IN_MEMORY:
                store.write(path, file.read_bytes())
            else:
                with store.scratch() as scratch:
                    store.put(Path(shutil.copyfile(file, scratch / file.name)), path)
        return FileRef(path=name, sha256=folder.files[name], bytes=size)

    with ThreadPoolExecutor(_WRITERS) as pool:
        return EncoderFiles(path=root, files=tuple(pool.map(copy, sorted(folder.files))))


def encoder_for_workers(settings: EncoderSettings, store: Store, workers: Workers) -> EncoderSettings:
    """Return settings of the same encoder with a path that workers on any node can read.

    If the store is remote, this is the path of the copy in the store, which workers read through the cache of
    their node. If the store is a directory, it and the encoder's folder must be visible on every node.
    """
    if "://" in settings.path or not store.shared or workers.shares_disk:
        return with_absolute_paths(settings)
    folder = open_folder(settings, cross_encoder=True)  # a training may start from one
    return settings.model_copy(update={"path": store.uri_of(keep_encoder(folder, store).path)})
