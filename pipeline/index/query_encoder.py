"""The encoder of a release, loaded from the release's own files."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pipeline.errors import DataError, SpaceMismatch
from pipeline.index.parts import linked_folder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.base import Store, checked
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.stored import FileRef

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder


def load_query_encoder(store: Store, manifest: ReleaseManifest, device: str) -> "Encoder":
    """Load the encoder of a release.

    It is not compiled, because that would delay the first query by seconds, and the process keeps its number
    of threads.

    Raises:
        DataError: a file is missing or changed, or this version does not know a setting.
        SpaceMismatch: its vectors are of another space than those of the release.
    """
    import torch

    from pipeline.models.inference.encoder import load_encoder

    settings = EncodeSettings(compile=False, threads=torch.get_num_threads())
    folder_path = manifest.encoder.path
    files = [
        (
            file.path,
            local_file(store, file.model_copy(update={"path": f"{folder_path}/{checked(file.path)}"})),
        )
        for file in manifest.encoder.files
    ]
    with linked_folder(files) as folder:
        encoder = load_encoder(_encoder_settings(manifest, folder), settings, device)
    if encoder.space_id != manifest.space_id:
        raise SpaceMismatch(
            store.uri_of(folder_path),
            f"space {manifest.space_id}",
            f"space {encoder.space_id}",
            "the encoder folder is not that of the release: restore it",
        )
    return encoder


def local_file(store: Store, reference: FileRef, verify: bool = True) -> Path:
    """Return the path on this machine of a file of the release.

    Raises:
        DataError: the file does not exist, or `verify` is set and its sha256 differs.
    """
    try:
        return store.local(reference.path, reference.sha256 if verify else None)
    except FileNotFoundError:
        raise DataError(
            store.uri_of(reference.path),
            "a file of the release",
            "no such file",
            "restore it, or roll back to a complete release",
        ) from None


def _encoder_settings(manifest: ReleaseManifest, folder: Path) -> EncoderSettings:
    try:
        return EncoderSettings(**{**manifest.settings.get("encoder", {}), "path": str(folder)})
    except ValidationError as error:
        raise DataError(
            f"release {manifest.release}: settings.encoder",
            "settings that this version knows",
            str(error.errors()[0]["loc"]),
            "open it with the version that wrote it",
        ) from None
