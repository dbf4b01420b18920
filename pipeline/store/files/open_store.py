"""Open the store at a path or URI."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipeline.config import refuse_credentials, refuse_web_address
from pipeline.errors import ConfigError
from pipeline.store.files.base import Store
from pipeline.store.files.clouds import AzureStore, GoogleStore
from pipeline.store.files.local import LocalStore
from pipeline.store.files.remote import ObjectStore
from pipeline.store.files.s3 import S3Store

_STORES = {
    **dict.fromkeys(("s3", "s3a"), S3Store),
    **dict.fromkeys(("az", "abfs", "abfss"), AzureStore),
    **dict.fromkeys(("gs", "gcs"), GoogleStore),
}
"""classes of object stores, by the scheme of their URIs; `ObjectStore` for another scheme"""


def open_store(uri: str | Path) -> Store:
    """Open the store at a directory, a file:// URI, or any URI that fsspec knows (s3://bucket/prefix).

    Raises:
        ConfigError: the URI contains credentials, is empty, or names a file or a web page.
    """
    text = str(uri)
    refuse_credentials(text)
    refuse_web_address(text)
    if not text or "\0" in text:
        raise ConfigError(
            "the root of a store",
            "a directory or a URI such as s3://bucket/prefix",
            repr(text),
            "set it to a directory or a URI",
        )
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in ("", "file"):
        path = unquote(urlsplit(text).path) if scheme else os.path.expanduser(text)
        path = os.path.abspath(path)
        _refuse_files(path, text)
        return LocalStore(path)
    return _STORES.get(scheme, ObjectStore)(f"{scheme}://" + text.partition("://")[2].rstrip("/"))


def _refuse_files(path: str, text: str) -> None:
    """Raise ConfigError if a path, or the part of it that exists, does not lead to a directory."""
    existing = path
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    if existing == path and not os.path.isdir(path):
        raise ConfigError(text, "a directory", "a file", "give the directory that contains the file")
    if not os.path.isdir(existing):
        raise ConfigError(text, "a directory", f"a path below the file {existing}", "correct the path")


def store_of(file: str) -> tuple[Store, str]:
    """Open the store of the folder that holds `file`, a path or URI; return the store and the file's name.

    In an object store, keys of any form can be read. Symbolic links on this machine's disk are resolved
    first, because a store refuses links that lead out of its root.
    """
    resolved = file if "://" in file else str(Path(os.path.expanduser(file)).resolve())
    parent, _, name = resolved.rpartition("/")
    scheme, _, rest = parent.partition("://")
    if not rest or scheme == "file":
        return open_store(parent or "/"), name
    refuse_credentials(parent)
    return _STORES.get(scheme, ObjectStore)(parent, any_keys=True), name
