"""The interface of targets of exports, their registry, and the position that each target stores."""

import abc
import contextlib
import importlib
import os
import re
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pydantic import ValidationError

from pipeline.config import Settings, refuse_credentials
from pipeline.errors import ConfigError, DataError, PipelineError, TransientError
from pipeline.registry import Registry
from pipeline.store.files.disk import translate_disk_errors


class HeldRelease(Settings):
    """A release, as targets remember it."""

    number: int
    sha256: str
    """sha256 of its manifest, by which a release of another root with the same number is recognized"""


EMPTY = HeldRelease(number=0, sha256="")
"""Stands for no rows, in the position of a target that is being filled."""

UNKNOWN = HeldRelease(number=-1, sha256="")
"""Stands for rows of pruned releases, in the position of a target that is being written as a whole."""


class Position(Settings):
    """The release that a target equals or, while an export runs, the releases from which its rows
    may come.
    """

    space_id: str
    columns: dict[str, str]
    """names and types of all columns"""
    releases: tuple[HeldRelease, ...]
    """one release if no export is running; else all releases of which the target may have rows"""
    next: HeldRelease | None = None
    """the release that is being exported, of which some rows may be in the target too"""
    steps: int = 0
    """number of finished steps of the running export"""

    @property
    def held(self) -> HeldRelease | None:
        """The release that the target equals; None while an export runs."""
        return self.releases[0] if self.next is None else None


class Target(abc.ABC):
    """A table of rows (id, vector, kept columns) outside the root, which an export makes equal to a release.

    Every call may be repeated with the same arguments: an export that was killed repeats its last step.
    """

    extra: ClassVar[str | None] = None
    """extra of the package that installs the client"""
    credentials: ClassVar[str] = ""
    """environment variables with user, password or key; empty: the variables of the address's scheme"""
    is_atomic: ClassVar[bool] = False
    """whether readers see no change of an export before it has ended"""
    takes_paths: ClassVar[bool] = True
    """whether an address without scheme is a path of this machine"""
    looks_like_corpus: ClassVar[bool] = False
    """whether a folder of the target has files that a night over that folder would read as rows"""
    page_ids: ClassVar[int] = 8_192
    """number of ids that are read at once; servers of OpenSearch give at most 10,000"""

    name_form: ClassVar[str] = r".+"
    """regular expression of valid names"""
    name_rule: ClassVar[str] = "a name that is not empty"
    """the rule of `name_form` in words, for messages"""

    def __init__(self, uri: str, name: str) -> None:
        """Connect to the target.

        Args:
            uri: address of the server, or a folder.
            name: name of the table, collection or index.

        Raises:
            ConfigError: an invalid address or name.
            TransientError: the server does not answer.
        """
        self.uri, self.name = uri, name
        if not uri:
            raise ConfigError("TARGET", "the address of a server, or a folder", "an empty text", "set it")
        if not re.fullmatch(self.name_form, name):
            raise ConfigError(f"{uri}: --name", self.name_rule, repr(name), "choose another --name")

    @property
    def where(self) -> str:
        """Name of the target in messages."""
        return f"{self.uri}: {self.name}"

    @property
    def address(self) -> str:
        """The address in one spelling, by which exports to the same target recognize each other."""
        scheme, separator, rest = self.uri.partition("://")
        if scheme == "file" and separator:
            return os.path.realpath(unquote(urlsplit(self.uri).path))
        if not separator:
            return os.path.realpath(os.path.expanduser(self.uri)) if self.takes_paths else self.uri
        host, _, path = rest.partition("/")
        return f"{scheme.lower()}://{host.lower()}/{path}".rstrip("/")

    @abc.abstractmethod
    def position(self) -> Position | None:
        """Return the stored position; None if the target does not exist.

        Raises:
            DataError: there is a table of this name that no export wrote.
        """

    @abc.abstractmethod
    def create(self, schema: pa.Schema, position: Position) -> None:
        """Create the target without rows, replacing an earlier one, and store the position.

        Args:
            schema: columns `id`, `vector`, and the kept columns.
        """

    @abc.abstractmethod
    def upsert(self, rows: pa.Table) -> None:
        """Insert rows, or replace rows with the same ids. No id is repeated in `rows`."""

    @abc.abstractmethod
    def delete(self, ids: pa.Array) -> None:
        """Delete the rows with these ids, some of which may not be in the target."""

    @abc.abstractmethod
    def ids(self) -> Iterator[pa.Array]:
        """Yield the ids of all rows; cast to the type of the ids, they equal the result of `stored_ids`."""

    def stored_ids(self, ids: pa.Array) -> pa.Array:
        """Return ids as the target stores them."""
        return ids

    @abc.abstractmethod
    def store_position(self, position: Position) -> None:
        """Store the position, after all earlier changes are durable."""

    @abc.abstractmethod
    def count(self) -> int | None:
        """Return the number of rows; None if the target is not a table."""

    def close(self) -> None:  # noqa: B027  most targets have nothing to close
        """Close the connection."""

    def explain(self, error: Exception) -> PipelineError | None:
        """Return the error to report for an error of the client; None if it is a defect."""
        return None

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors of the client within the block into errors that a person can act on."""
        is_folder = self.takes_paths and "://" not in self.uri
        try:
            with translate_disk_errors(self.uri) if is_folder else contextlib.nullcontext():
                yield
        except PipelineError:
            raise
        except Exception as error:
            if (explained := self.explain(error)) is None:
                raise
            raise explained from error

    @contextlib.contextmanager
    def connecting(self) -> Iterator[None]:
        """Do the same as `explained` for a block that connects, where a ValueError is an invalid address."""
        try:
            with self.explained():
                yield
        except ValueError as error:
            found = " ".join(str(error).split())
            raise ConfigError(
                f"TARGET {self.uri!r}", "an address of a target of this kind", found, "correct the address"
            ) from error

    def parsed(self, position: str) -> Position:
        """Return the position that an export stored as JSON. Raises DataError if it was edited."""
        try:
            return Position.model_validate_json(position)
        except ValidationError as error:
            raise DataError(
                self.where,
                "the position that an export stored beside the rows",
                " ".join(str(error).split())[:300],
                "export to another --name, or delete the table and export again",
            ) from None

    def foreign(self, kind: str, advice: str = "choose another --name") -> DataError:
        """Return the error for a table that no export wrote; `kind` is the target's word for a table."""
        expected = f"no {kind} of this name, or one that an export wrote"
        return DataError(self.where, expected, f"{kind} of another program", advice)

    def refused(self, error: Exception, remedy: str) -> ConfigError:
        """Return the error for a request that a server refuses however often it is sent."""
        found = " ".join(str(error).split()) or type(error).__name__
        return ConfigError(self.where, "a server that accepts the request", found, remedy)

    def unreachable(self, error: Exception) -> TransientError:
        """Return the error for a server that does not answer, or fails."""
        return TransientError(
            self.uri,
            "a server that answers",
            " ".join(str(error).split()) or type(error).__name__,
            "check the address and the server, and run again: the export continues",
        )

    @classmethod
    def client(cls, module: str) -> Any:
        """Import the client's module. Raises ConfigError, naming the extra, if it is not installed."""
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"manta export: {module}",
                "the client of the target",
                f"no module {error.name}",
                f'install it: pip install "manta-embeddings[{cls.extra}]"',
            ) from None


TARGETS: Registry[type[Target]] = Registry("target", "pipeline.targets")


def check_target(kind: str, uri: str) -> type[Target]:
    """Return the class of a kind of targets.

    Raises ConfigError if there is no such kind, or if the address contains a user, a password or a key.
    """
    target = TARGETS[kind]
    refuse_credentials(uri, target.credentials)
    return target


@contextlib.contextmanager
def opened_target(kind: str, uri: str, name: str) -> Iterator[Target]:
    """Connect to a target for the duration of the block."""
    target = check_target(kind, uri)(uri, name)
    try:
        yield target
    finally:
        target.close()
