"""The tokens of a service: who may send requests, and to which rows each token is limited.

A file of tokens is YAML. It names each token, has the sha256 of its secret, so that a reader of the file
cannot use it, and for some a filter that is added to every request:

    search-team:
      sha256: 4c5b...
    acme:
      sha256: 9f86...
      where: tenant = 'acme'
"""

import contextlib
import hashlib
import hmac
import re
import secrets
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pipeline.errors import ConfigError, DataError, did_you_mean
from pipeline.index.search.search import OpenRelease
from pipeline.log import announce
from pipeline.serve.connections import say_seldom
from pipeline.serve.messages import MAX_CHARACTERS
from pipeline.serve.metrics import ServiceMetrics
from pipeline.yaml_tree import read_yaml

_POLL_S = 2.0  # time after which a changed file is used
_MAX_TOKENS = 1_000  # each is a label value of metrics
_MAX_BYTES = 4 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIELDS = ("sha256", "where")


@dataclass(frozen=True)
class AccessToken:
    """The name and the rights of those who send requests with one secret."""

    name: str
    """for people and metrics; it is no secret"""
    where: str | None = None
    """filter on the rows that requests with this token can find; None: all rows"""

    def limited(self, release: OpenRelease) -> OpenRelease:
        """Return the release that is open now, limited to the rows of this token.

        Raises:
            DataError: the filter does not fit the columns of the release. The message, which goes to the
                client, does not show the filter.
        """
        if self.where is None:
            return release.snapshot()
        try:
            return release.within(self.where)
        except ConfigError as error:
            say_seldom(f"requests with the token {self.name} are refused: its filter: {error}")
            raise DataError(
                f"release {release.number}",
                "the columns of the filter that belongs to this token",
                "others",
                "tell the people who run this service; no request with this token is answered until then",
            ) from None


ANYONE = AccessToken("")
"""who sends requests to a service without tokens"""


class AccessTokens:
    """The tokens that requests may carry. They may be replaced while threads look them up."""

    def __init__(self, tokens: dict[bytes, AccessToken]) -> None:
        """Make the table.

        Args:
            tokens: by the sha256 of their secrets.
        """
        # Looking up a digest may take longer the more of it is right. With a key that nobody knows, clients
        # cannot choose digests, so that time tells them nothing.
        self._key = secrets.token_bytes(32)
        self.replace(tokens)

    @classmethod
    def of(cls, secret: str) -> Self:
        """Return tokens with one secret, whose owner finds all rows."""
        return cls({hashlib.sha256(secret.encode()).digest(): AccessToken("default")})

    def replace(self, tokens: dict[bytes, AccessToken]) -> None:
        """Use other tokens from now on."""
        self._by_digest = {self._keyed(digest): token for digest, token in tokens.items()}

    def find(self, secret: bytes) -> AccessToken | None:
        """Return the token with a secret; None if there is none."""
        return self._by_digest.get(self._keyed(hashlib.sha256(secret).digest()))

    @property
    def names(self) -> set[str]:
        """Names of the tokens."""
        return {token.name for token in self._by_digest.values()}

    def _keyed(self, digest: bytes) -> bytes:
        return hmac.digest(self._key, digest, "sha256")


class TokenFile:
    """A file of tokens, read again when its content changes.

    If the new content is invalid, the tokens of before stay in use, and a log line says so.

    Attributes:
        tokens: the tokens in use.
    """

    def __init__(self, file: Path, release: OpenRelease, metrics: ServiceMetrics) -> None:
        """Read the file.

        Args:
            release: the release whose columns the filters must fit.

        Raises:
            ConfigError: the file cannot be used.
        """
        self._file, self._release, self._metrics = file, release, metrics
        self._content = _read(file)
        self.tokens = AccessTokens(read_tokens(file, release))
        self._last_sentence = ""
        self._check_mode()

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Look every two seconds for another content while the block runs."""
        stop = threading.Event()

        def follow() -> None:
            while not stop.wait(_POLL_S):
                self.refresh()

        threading.Thread(target=follow, daemon=True, name="tokens").start()
        try:
            yield
        finally:
            stop.set()

    def refresh(self) -> None:
        """Use the file's tokens if its content has changed, and it is valid."""
        try:
            content = _read(self._file)
            if content == self._content and not self._last_sentence:
                return
            before = self.tokens.names
            found = read_tokens(self._file, self._release)
            self.tokens.replace(found)
            self._content = content
            self._metrics.forget_tokens(before - self.tokens.names)
            self._metrics.tokens_refused.set(0)
            self._last_sentence = ""
            added, gone = sorted(self.tokens.names - before), sorted(before - self.tokens.names)
            changes = [f"new: {', '.join(added)}"] * bool(added) + [f"gone: {', '.join(gone)}"] * bool(gone)
            announce("; ".join([f"{self._file}: {len(found)} tokens are in use", *changes]))
            self._check_mode()
        except ConfigError as error:
            self._metrics.tokens_refused.set(1)
            self._say(f"the tokens of before stay in use, because the file cannot be used: {error}")
        except OSError:  # standard error is closed or its disk is full
            self._metrics.tokens_refused.set(1)

    def _say(self, sentence: str) -> None:
        """Print a sentence, unless it equals the last printed one."""
        if sentence != self._last_sentence:
            self._last_sentence = sentence
            announce(sentence)

    def _check_mode(self) -> None:
        """Warn if others than owner and group can read the file, or others than its owner can change it."""
        mode = self._file.stat().st_mode
        if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
            announce(
                f"{self._file} has mode {stat.S_IMODE(mode):03o}: others can read or change who may search; "
                f"chmod 600 {self._file}"
            )


def read_tokens(file: Path, release: OpenRelease) -> dict[bytes, AccessToken]:
    """Read a file of tokens.

    Args:
        release: the release whose columns the filters must fit.

    Returns:
        The tokens by the sha256 of their secrets.

    Raises:
        ConfigError: the file cannot be used. The message shows names and filters, but no other values.
    """
    found = dict[bytes, AccessToken]()
    tree = read_yaml(file)
    if not 0 < len(tree) <= _MAX_TOKENS:
        raise ConfigError(
            str(file), f"1 to {_MAX_TOKENS:,} tokens by name", f"{len(tree):,}", "add or remove tokens"
        )
    for name, values in tree.items():
        digest, token = _token(file, name, values)
        if digest in found:
            raise ConfigError(
                f"{file}: {name}", "a secret of its own", f"the secret of {found[digest].name}", "change one"
            )
        if token.where is not None:
            try:
                release.within(token.where)
            except ConfigError as error:
                raise ConfigError(f"{file}: {name}: {error.where}", *_rest(error)) from None
        found[digest] = token
    return found


def _rest(error: ConfigError) -> tuple[str, str, str]:
    return error.expected, error.found, error.remedy


def _token(file: Path, name: Any, values: Any) -> tuple[bytes, AccessToken]:
    """Return the digest and the token that an entry of a file describes."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        names = "names of 1 to 64 letters, digits, '.', '_' and '-'"
        raise ConfigError(str(file), names, repr(name)[:80], "rename the token")
    where = f"{file}: {name}"
    if not isinstance(values, dict):
        raise ConfigError(where, "sha256: ... and maybe where: ...", type(values).__name__, "see the manual")
    for key in values:
        if key not in _FIELDS:
            otherwise = "the file has the sha256 of a secret, not the secret: printf %s SECRET | sha256sum"
            raise ConfigError(
                where, " or ".join(_FIELDS), repr(key)[:80], did_you_mean(str(key), _FIELDS, otherwise)
            )
    digest = values.get("sha256")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        found = "none" if digest is None else "another value"
        raise ConfigError(
            f"{where}: sha256", "64 hexadecimal digits in lower case", found, "printf %s SECRET | sha256sum"
        )
    limit = values.get("where")
    if "where" in values and (not isinstance(limit, str) or not limit.strip() or len(limit) > MAX_CHARACTERS):
        found = "no text" if not isinstance(limit, str) else f"{len(limit):,} characters"
        raise ConfigError(
            f"{where}: where",
            f"a filter, such as tenant = 'acme', of at most {MAX_CHARACTERS:,} characters",
            found,
            "write a filter; only a token without the key finds all rows",
        )
    return bytes.fromhex(digest), AccessToken(name, limit)


def _read(file: Path) -> bytes:
    """Return the content. Raises ConfigError if the file cannot be read, or is too large."""
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigError(str(file), "a file of tokens", found, "check --tokens, and the file") from None
    if len(content) > _MAX_BYTES:
        raise ConfigError(str(file), f"at most {_MAX_BYTES >> 20} MiB", "more", "check --tokens")
    return content
