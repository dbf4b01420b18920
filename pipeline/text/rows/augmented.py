"""Find the training files that `manta augment` wrote, from its manifest or a folder of manifests."""

import os
import re
from pathlib import PurePosixPath

from pipeline.errors import DataError
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.augmented import AUGMENTED_FOLDER, Augmented, Series
from pipeline.text.sources.listing import local_path
from pipeline.text.sources.sources import SourceFile
from pipeline.text.sources.storage_errors import storage_errors

_SUFFIX = ".json"
# Local files of up to this total size are hashed, in half a second; of other files only the sizes are
# checked.
_MAX_HASHED_BYTES = 256 << 20
_REMEDY = "run manta augment again, which restores missing units, or name another manifest"


def newest_manifest(uri: str) -> str | None:
    """URI of the newest manifest in a folder augmented/NAME; None for another folder, or if it has none."""
    root, path = _split_uri(uri)
    if PurePosixPath(path).parent.as_posix() != AUGMENTED_FOLDER or path.endswith(_SUFFIX):
        return None
    series = Series(open_store(root), PurePosixPath(path).name)
    with storage_errors(uri, ""):
        numbers = series.numbers()
    return f"{root}/{series.path(max(numbers))}" if numbers else None


def is_manifest(uri: str) -> bool:
    """Return whether a URI names a manifest, by its suffix."""
    return uri.endswith(_SUFFIX)


def is_manifest_in(uri: str, folder: str) -> bool:
    """Return whether a URI names a manifest directly in a folder; local paths may be relative or links."""
    return is_manifest(uri) and _resolve(uri).rpartition("/")[0] == _resolve(folder)


def manifest_units(uri: str) -> list[SourceFile]:
    """List the Parquet files of a manifest, in its order. The stamp of each file is its sha256.

    Raises:
        DataError: the manifest is missing, damaged or without units, or a unit is missing or has another
            size or content. Contents are checked only on a local disk, up to _MAX_HASHED_BYTES in total.
    """
    root, path = _split_uri(uri)
    store = open_store(root)
    with storage_errors(uri, ""):
        manifest = _load_manifest(store, path, uri)
        folders = {unit.path.rpartition("/")[0] for unit in manifest.units}
        sizes = {entry.path: entry.size for folder in folders for entry in store.list(folder)}
        for unit in manifest.units:
            if (size := sizes.get(unit.path)) != unit.bytes:
                raise DataError(
                    store.uri_of(unit.path),
                    f"a unit of {unit.bytes:,} bytes, as {path} says",
                    "no such file" if size is None else f"{size:,} bytes",
                    _REMEDY,
                )
        if local_path(root) is not None and sum(unit.bytes for unit in manifest.units) <= _MAX_HASHED_BYTES:
            for unit in manifest.units:
                unit.file.local(store)
    return [
        SourceFile(unit.path, store.uri_of(unit.path), unit.bytes, f"sha256:{unit.sha256}", "parquet")
        for unit in manifest.units
    ]


def _load_manifest(store: Store, path: str, uri: str) -> Augmented:
    manifest = Augmented.load(store, path)
    if manifest is None:
        raise DataError(
            uri, "a manifest of manta augment", "no such file", "check the URI of the training rows"
        )
    if not manifest.units:
        raise DataError(
            uri,
            "a manifest with units",
            "none, because the corpus had no row",
            "check the corpus, and run manta augment again",
        )
    return manifest


def _split_uri(uri: str) -> tuple[str, str]:
    """(root, path below it) of a manifest, or of a folder of manifests."""
    parts = _resolve(uri).split("/")
    depth = 3 if is_manifest(uri) else 2  # augmented/NAME/0001.json, augmented/NAME
    return "/".join(parts[:-depth]) or "/", "/".join(parts[-depth:])


def _resolve(uri: str) -> str:
    """The URI without trailing slashes; for a local path, the absolute path without links."""
    path = local_path(uri)
    return re.sub(r"/+$", "", uri) if path is None else os.path.realpath(path)
