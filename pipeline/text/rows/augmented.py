"""Units of variants as files of rows: named by the manifest that `manta augment` left, or by the folder of its manifests."""

import os
import re
from pathlib import PurePosixPath

from pipeline.errors import DataError
from pipeline.store.augmented import TOP, Augmented, Series
from pipeline.store.base import Store
from pipeline.store.store import open_store
from pipeline.store.units import UnitRecord
from pipeline.text.corpus.sources import SourceFile, explained, local_path

_ENDING = ".json"
_HASHED = (
    256 << 20
)  # bytes on this machine's disk whose content is checked before a training: half a second; what is more is known by its size
_REMEDY = "run manta augment again, which makes what is missing, or name another manifest"


def newest(uri: str) -> str | None:
    """The URI of the newest manifest, where `uri` is a folder of them: augmented/<name> below a root; None where it is none."""
    root, path = _parted(uri)
    if PurePosixPath(path).parent.as_posix() != TOP or path.endswith(_ENDING):
        return None
    series = Series(open_store(root), PurePosixPath(path).name)
    with explained(uri, ""):
        numbers = series.numbers()
    return f"{root}/{series.path(numbers[-1])}" if numbers else None


def is_manifest(uri: str) -> bool:
    """Whether it can only be a manifest, by its ending."""
    return uri.endswith(_ENDING)


def folder_of(uri: str) -> str | None:
    """The folder of a manifest, as `resolved` has it; None for another URI."""
    return _resolved(uri).rpartition("/")[0] if is_manifest(uri) else None


def same_folder(left: str, right: str) -> bool:
    """Whether two URIs, which may be relative paths or have links in them, lead to one place."""
    return _resolved(left) == _resolved(right)


def units_of(uri: str) -> list[SourceFile]:
    """The Parquet files of a manifest, in its order; a unit's stamp is its sha256. DataError for a manifest that is not there or damaged, and for a unit that is not
    there in full, or has another content where that is quickly said."""
    root, path = _parted(uri)
    store = open_store(root)
    with explained(uri, ""):
        manifest = _loaded(store, path, uri)
        folders = {unit.path.rpartition("/")[0] for unit in manifest.units}
        sizes = {entry.path: entry.size for folder in folders for entry in store.list(folder)}
        for unit in manifest.units:
            if (found := sizes.get(unit.path)) != unit.bytes:
                said = "no such file" if found is None else f"{found:,} bytes"
                raise DataError(
                    store.uri_of(unit.path), f"a unit of {unit.bytes:,} bytes, as {path} says", said, _REMEDY
                )
        if local_path(root) is not None and sum(unit.bytes for unit in manifest.units) <= _HASHED:
            for unit in manifest.units:
                store.local(unit.path, unit.sha256)
    return [_file(store, unit) for unit in manifest.units]


def _loaded(store: Store, path: str, uri: str) -> Augmented:
    manifest = Augmented.load(store, path)
    if manifest is None:
        raise DataError(
            uri, "a manifest of manta augment", "no such file", "check the URI of the training rows"
        )
    if not manifest.units:
        raise DataError(
            uri,
            "a manifest with units",
            "none: the corpus had no row",
            "check the corpus, and run manta augment again",
        )
    return manifest


def _file(store: Store, unit: UnitRecord) -> SourceFile:
    return SourceFile(unit.path, store.uri_of(unit.path), unit.bytes, f"sha256:{unit.sha256}", "parquet")


def _parted(uri: str) -> tuple[str, str]:
    """(the root, the path below it) of a manifest, or of a folder of manifests."""
    place = _resolved(uri)
    parts = place.split("/")
    below = 3 if is_manifest(uri) else 2
    return "/".join(parts[:-below]) or "/", "/".join(parts[-below:])


def _resolved(uri: str) -> str:
    path = local_path(uri)
    return re.sub(r"/+$", "", uri) if path is None else os.path.realpath(path)
