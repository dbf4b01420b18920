"""Split a filter of search results, such as `price < 10 and lang = 'de'`, into tokens."""

import re
from typing import Literal, NamedTuple

from pipeline.errors import ConfigError

Kind = Literal["keyword", "name", "string", "number", "symbol", "end"]

_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "like", "true", "false"})
_MAX_SHOWN = 200  # characters of a token in an error
_PATTERN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?)(?!\w)
    |(?P<string>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<word>[^\W\d]\w*)
    |(?P<symbol><>|!=|<=|>=|[=<>(),])""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A token of a filter.

    Attributes:
        text: the token as it is written.
        value: keyword in lower case, name of a column, content of a string, or the token as it is written.
        position: position of its first character, from 1.
    """

    kind: Kind
    text: str
    value: str
    position: int


def where_error(token: Token, expected: str, found: str = "", remedy: str = "") -> ConfigError:
    """Create the error about a token.

    Args:
        found: what was found; "": the token itself.
        remedy: what to do; "": the grammar in a few words.
    """
    return ConfigError(
        f"where, position {token.position}",
        expected,
        _shortened(found or ("the end" if token.kind == "end" else token.text)),
        remedy or "conditions are like price < 10 and lang in ('de', 'en'), joined by and, or, not",
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text):,} characters)"


def tokenize(text: str) -> list[Token]:
    """Split a filter into tokens, the last of which is the end.

    Raises:
        ConfigError: a character cannot begin a token, or a quote is not closed.
    """
    tokens, start = [], 0
    while start < len(text):
        match = _PATTERN.match(text, start)
        if match is None:
            raise _unknown(text, start)
        if match.lastgroup != "space":
            tokens.append(_token(str(match.lastgroup), match.group(), start + 1))
        start = match.end()
    return [*tokens, Token("end", "", "", len(text) + 1)]


def _token(group: str, text: str, position: int) -> Token:
    if group == "word":
        lower = text.lower()
        return Token("keyword", text, lower, position) if lower in _KEYWORDS else _name(text, text, position)
    if group == "quoted":
        return _name(text, text[1:-1].replace('""', '"'), position)
    if group == "string":
        return Token("string", text, text[1:-1].replace("''", "'"), position)
    return Token("number" if group == "number" else "symbol", text, text, position)


def _name(text: str, name: str, position: int) -> Token:
    return Token("name", text, name, position)


def _unknown(text: str, start: int) -> ConfigError:
    """Return the error for a character that begins no token."""
    character = text[start]
    token = Token("symbol", text[start : start + 20], "", start + 1)
    if character in "'\"":
        return where_error(
            token, f"a closing {character}", "none", f"a {character} within the quotes is written twice"
        )
    return where_error(token, "a column, a value or an operator")
