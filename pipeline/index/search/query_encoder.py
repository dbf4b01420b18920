"""Load the encoder of a release from the files of that release, to encode queries with it."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pipeline.errors import DataError, SpaceMismatch
from pipeline.index.files.parts import linked_folder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.base import Store, normal_path
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import ReleaseManifest

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder


def load_query_encoder(store: Store, manifest: ReleaseManifest, device: str) -> "Encoder":
    """Load the encoder of a release.

    It is not compiled, because compilation delays the first query by seconds. The number of threads of the
    process does not change.

    Raises:
        DataError: a file is missing or changed, or this version does not know a setting.
        SpaceMismatch: the encoder's vectors are not of the release's space.
    """
    from pipeline.models.inference.encoder import load_encoder
    from pipeline.models.layers.numerics import usual_threads

    settings = EncodeSettings(compile=False, threads=usual_threads())
    stored_folder = manifest.encoder.path
    files = []
    for file in manifest.encoder.files:
        stored = file.model_copy(update={"path": f"{stored_folder}/{normal_path(file.path)}"})
        files.append((file.path, local_file(store, stored)))
    with linked_folder(files) as folder:
        encoder = load_encoder(_encoder_settings(manifest, folder), settings, device)
    if encoder.space_id != manifest.space_id:
        raise SpaceMismatch(
            store.uri_of(stored_folder),
            f"space {manifest.space_id}",
            f"space {encoder.space_id}",
            "another encoder is stored in the folder of the release's encoder: restore it",
        )
    return encoder


def local_file(store: Store, reference: FileRef, verify: bool = True) -> Path:
    """Fetch a file of the release if necessary, and return its path on this machine.

    Raises:
        DataError: the file does not exist, or `verify` is True and its sha256 differs.
    """
    try:
        return store.local(reference.path, reference.sha256 if verify else None)
    except FileNotFoundError:
        raise DataError(
            store.uri_of(reference.path),
            "a file of the release",
            "no such file",
            "restore the file, or roll back to a complete release",
        ) from None


def _encoder_settings(manifest: ReleaseManifest, folder: Path) -> EncoderSettings:
    try:
        return EncoderSettings(**{**manifest.settings.get("encoder", {}), "path": str(folder)})
    except ValidationError as error:
        raise DataError(
            f"release {manifest.release}: settings.encoder",
            "settings that this version knows",
            str(error.errors()[0]["loc"]),
            "open the release with the version that wrote it",
        ) from None
