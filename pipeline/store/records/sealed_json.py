"""A value stored as one sealed JSON file, and references to the files that it names."""

import builtins
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Self

import pyarrow as pa

from pipeline.config import Settings, canonical, digest_of
from pipeline.errors import DataError
from pipeline.store.files.base import Store, sha256_mismatch

SCHEMA_VERSION = 1  # schema of manifests; raised with every change that older versions would misread
_SEAL = "seal"
_SEAL_FIELD, _SEAL_DIGITS = b'"seal":"', 64  # hexadecimal digits of a sha256


class Stored(Settings):
    """A value stored as one JSON file with a seal, the sha256 of its other fields."""

    def to_json(self) -> bytes:
        """Return the content of the file."""
        value = self.model_dump(mode="json")
        return canonical(value | {_SEAL: digest_of(value)}) + b"\n"

    @classmethod
    def from_json(cls, content: bytes, name: str, store: Store | None = None) -> Self:
        """Parse the content of a file.

        Args:
            name: the file's URI for error messages.
            store: store of the file, for records that read other files when they are used.

        Raises:
            DataError: the file is damaged, was changed, or holds another kind of record.
            OtherSchema: the record has another schema version.
        """
        try:
            if (body := _sealed_body(content)) is not None:
                return cls.model_validate_json(body, context=store)
            value = json.loads(content)
            seal = value.pop(_SEAL, None)  # files of the earliest versions have no seal
            if seal is not None and seal != (found := digest_of(value)):
                raise sha256_mismatch(name, str(seal), found)
            version = value.get("schema_version", SCHEMA_VERSION)
            if type(version) is not int or version != SCHEMA_VERSION:  # true and 1.0 equal 1 in Python
                newer = type(version) is int and version > SCHEMA_VERSION
                raise OtherSchema(
                    name,
                    f"schema_version {SCHEMA_VERSION}",
                    repr(version),
                    "it was written by a newer version: update this one"
                    if newer
                    else "it was changed or damaged: restore it, or roll back to an older release",
                )
            return cls.model_validate(value, context=store)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                name,
                f"a {cls.__name__} record",
                f"{type(error).__name__}: {str(error)[:200]}",
                "the file is damaged or of another version: delete it and run again",
            ) from None

    @classmethod
    def load(cls, store: Store, path: str) -> Self | None:
        """Load the record at `path`; None if it does not exist. Raises DataError like `from_json`."""
        try:
            return cls.from_json(store.read(path), store.uri_of(path), store)
        except FileNotFoundError:
            return None

    @classmethod
    def load_intact(cls, store: Store, path: str) -> Self | None:
        """Load the record that an earlier run wrote. Raises DataError like `from_json`.

        Returns None if it is missing or truncated, so that the caller redoes the work.
        """
        try:
            content = store.read(path)
        except FileNotFoundError:
            return None
        return cls.from_json(content, store.uri_of(path), store) if content.endswith(b"}\n") else None

    @classmethod
    def read(cls, store: Store, reference: "FileRef") -> Self:
        """Read the record in a file that another record names.

        Raises:
            FileNotFoundError: there is no such file.
            DataError: the sha256 differs, or as in `from_json`.
        """
        return cls.from_json(reference.read(store), store.uri_of(reference.path), store)

    @classmethod
    def load_complete(cls, store: Store, path: str) -> Self | None:
        """Load the record like `load_intact`; None also if a file that it names is missing or incomplete."""
        record = cls.load_intact(store, path)
        return record if record is not None and record.is_complete(store) else None

    def references(self) -> Iterator["FileRef"]:
        """Yield every file that this record, or a record inside it, names."""
        for value in self.__dict__.values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, FileRef):
                    yield item
                elif isinstance(item, Stored):
                    yield from item.references()

    def is_complete(self, store: Store) -> bool:
        """Return whether every file of `references` exists and has the recorded size."""
        return all(reference.is_complete(store) for reference in self.references())


def _sealed_body(content: bytes) -> bytes | None:
    """Return the content of a file without its seal, if the seal matches exactly these bytes.

    Otherwise returns None, although the file may be valid, because a seal is computed from parsed values.
    Returns None for every file with a schema version, too.
    """
    start = content.find(_SEAL_FIELD)
    digits = start + len(_SEAL_FIELD)
    end = digits + _SEAL_DIGITS
    if start < 0 or content.find(_SEAL_FIELD, end) >= 0 or b'"schema_version"' in content:
        return None
    before, quote, after = content[:start], content[end : end + 1], content[end + 1 :].removesuffix(b"\n")
    body = before[:-1] + after if before.endswith(b",") else before + after.removeprefix(b",")
    is_sealed = quote == b'"' and sha256(body).hexdigest().encode() == content[digits:end]
    return body if is_sealed else None


class OtherSchema(DataError):
    """A record has a schema version that this version of Manta does not know."""


class FileRef(Settings):
    """A reference to a stored file, with the digest of its content."""

    path: str
    sha256: str
    rows: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, path: str, content: builtins.bytes, rows: int = 0) -> Self:
        """Return the reference to a file with this content."""
        return cls(path=path, sha256=sha256(content).hexdigest(), rows=rows, bytes=len(content))

    def read(self, store: Store) -> builtins.bytes:
        """Return the content. Raises DataError if its sha256 differs."""
        return store.read_checked(self.path, self.sha256)

    def open(self, store: Store) -> pa.NativeFile:
        """Open the file as a seekable stream. Raises DataError if its sha256 differs."""
        return store.open(self.path, self.sha256)

    def local(self, store: Store) -> Path:
        """Return a path on this machine with the content. Raises DataError if its sha256 differs."""
        return store.local(self.path, self.sha256)

    def is_complete(self, store: Store) -> bool:
        """Return whether the file exists and has the recorded size."""
        return store.size(self.path) == self.bytes
