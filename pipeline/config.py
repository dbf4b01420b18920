"""Load settings from YAML and `key.path=value` overrides, check them, and write them as YAML."""

import ast
import contextlib
import functools
import hashlib
import inspect
import json
import math
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from pipeline.errors import ConfigError, did_you_mean
from pipeline.yaml_tree import leaves, override, read_yaml


class Settings(BaseModel):
    """Base class of settings: frozen, compared and hashed by content; unknown keys are refused.

    A field with an alias is written under the alias, and read under either name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the values that are not defaults."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if field.is_required() or value != field.get_default(call_default_factory=True):
                yield name, value

    def content_id(self) -> str:
        """Return the sha256 (hex) of the resolved values."""
        return digest_of(self.model_dump(mode="json"))

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return each field's description by name: its `Field(description=...)`, else the string below it.

        Pydantic's `use_attribute_docstrings` would read the source files of all settings in every command;
        here they are read on demand.
        """
        found: dict[str, str] = {}
        for kind in reversed(cls.__mro__):
            found |= _described_fields(kind.__module__).get(kind.__qualname__, {})
        return found | {
            key: field.description for key, field in cls.model_fields.items() if field.description
        }


class ShortSettings(Settings):
    """Settings that may be written as a plain string, which is the value of their first field."""

    @model_validator(mode="before")
    @classmethod
    def _string_is_the_first_field(cls, value: Any) -> Any:
        return {next(iter(cls.model_fields)): value} if isinstance(value, str) else value


@functools.cache
def _described_fields(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings below fields of a module's classes, by class and field.

    The result is empty if the module has no source file, as in an interactive session.
    """
    try:
        statements = ast.parse(inspect.getsource(sys.modules[module])).body
    except (OSError, TypeError):
        return {}
    descriptions: dict[str, dict[str, str]] = {}
    for statement in statements:
        if isinstance(statement, ast.ClassDef):
            descriptions[statement.name] = {
                field.target.id: inspect.cleandoc(below.value.value)
                for field, below in pairwise(statement.body)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            }
    return descriptions


S = TypeVar("S", bound=Settings)

# If a value may have one of several types, the key in pydantic's error ends with the type that did not fit.
_TRIED_TYPE = re.compile(r"(constrained-)?(int|float|str|bool)|literal\[.*\]")
_QUOTED = re.compile(r"'([^']+)'")  # an allowed value in a message of pydantic
# Beginnings and ends of pydantic's messages that do not fit between the words "expected" and "found".
_SUPERFLUOUS = re.compile(
    r"^(Value error, |\w+ should (be|have) )|( after validation, not .*|, unable to .*)$"
)
_KEY_IN_QUERY = re.compile(r"[?&][^=&/]*(key|secret|token|pass|pwd|sig|credential)[^=&/]*=", re.IGNORECASE)
_COMMAND_LINE = "command line"
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl")
_CONTAINER_SCHEMES = ("abfs", "abfss")  # abfs://container@account.dfs.core.windows.net
_VARIABLES = {
    **dict.fromkeys(_OBJECT_STORES[:2], "AWS_ACCESS_KEY_ID and so on"),
    **dict.fromkeys(_OBJECT_STORES[2:4], "GOOGLE_APPLICATION_CREDENTIALS"),
    **dict.fromkeys(_OBJECT_STORES[4:], "AZURE_STORAGE_CONNECTION_STRING and so on"),
    "hf": "HF_TOKEN",
}
"""environment variables that hold credentials, by scheme of the URI"""
_MAX_SHOWN = 200  # characters of an invalid value in an error message
_CORRECT = "correct the value; --print-config shows all settings"
_COMMENT_WIDTH = 150  # columns of a comment in YAML


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of a value, the same for equal values: sorted keys, no white space, UTF-8.

    Raises:
        ValueError: the value contains NaN or infinity.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_of(value: Any) -> str:
    """Return the sha256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def dump_for_digest(
    settings: Settings, *, leave_out: Collection[str], always: Collection[str]
) -> dict[str, Any]:
    """Return the settings that a digest covers, as JSON values.

    Every setting counts unless `leave_out` names it, so that a new one cannot be forgotten. Settings at their
    defaults are left out, so that earlier digests stay the same.

    Args:
        leave_out: names of settings that do not count.
        always: names of settings that are included even at their defaults.
    """
    fields = {name: field for name, field in type(settings).model_fields.items() if name not in leave_out}
    changed = {
        name
        for name, field in fields.items()
        if name in always or getattr(settings, name) != field.get_default(call_default_factory=True)
    }
    return settings.model_dump(mode="json", include=changed)


def load_settings(kind: type[S], file: str | Path | None = None, overrides: tuple[str, ...] = ()) -> S:
    """Load settings from a YAML file, then apply overrides.

    Args:
        kind: class of the settings.
        file: the YAML file; None starts from the defaults.
        overrides: `key.path=value`, where values are YAML too: `a.b=[1, 2]`.

    Raises:
        ConfigError: the file is missing or is not YAML, a key is unknown, a value is invalid, a number is not
            finite, or a URI contains credentials.
    """
    tree: dict[str, Any] = {}
    if file is not None:
        refuse_credentials(uri_of(file))
        tree = read_yaml(Path(file))
    for argument in overrides:
        refuse_credentials(argument)  # before it is parsed: an error message would show the whole argument
        override(tree, argument)
    source = _Source(str(file or _COMMAND_LINE), overrides)
    for key, value in leaves(tree):
        if isinstance(value, str):
            refuse_credentials(value)
        elif isinstance(value, float) and not math.isfinite(value):  # JSON has no NaN and no infinity
            raise ConfigError(f"{source.of(key)}: {key}", "a finite number", f"{value}", _CORRECT)
    return _validated(kind, tree, source)


def written_value(key: str, file: Path | None, overrides: tuple[str, ...]) -> Any:
    """Return a setting as written in the YAML file or an override, even if other settings are invalid.

    Returns:
        The value, which is not checked; None if it is not set, or cannot be read.
    """
    tree: Any = {}
    if file is not None:
        with contextlib.suppress(ConfigError):
            tree = read_yaml(file)
    for argument in overrides:
        with contextlib.suppress(ConfigError):
            override(tree, argument)
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def validated(kind: type[S], tree: Mapping[str, Any], source: str) -> S:
    """Return the settings in a tree of values. Raises ConfigError, naming `source`, if a value is invalid."""
    return _validated(kind, tree, _Source(source))


@dataclass(frozen=True)
class _Source:
    """Sources of the values of a tree: the command line if an override sets a value, else `name`."""

    name: str
    overrides: tuple[str, ...] = ()

    def of(self, key: str) -> str:
        """Return the source of the value of a key."""
        keys = (argument.partition("=")[0] for argument in self.overrides)
        return _COMMAND_LINE if any(f"{key}.".startswith(f"{each}.") for each in keys) else self.name


def _validated(kind: type[S], tree: Mapping[str, Any], source: _Source) -> S:
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise _explain(error, kind, source) from None


def credentials_of(uri: str) -> str:
    """Say where the credentials of a URI come from: environment variables, or else a role."""
    scheme = uri.partition("://")[0].rpartition("=")[2].lower()
    variables = f" ({_VARIABLES[scheme]})" if scheme in _VARIABLES else ""
    role = " or from the machine's role" if scheme in _OBJECT_STORES else ""
    return f"the environment{variables}{role}"


def refuse_credentials(uri: str, variables: str = "") -> None:
    """Raise ConfigError, without the secret, for a URI that contains a user, a password or a key.

    URIs are kept in manifests and shown in logs.

    Args:
        uri: the URI.
        variables: environment variables that hold the credentials; if empty, the variables of the URI's
            scheme.
    """
    before, separator, rest = uri.partition("://")
    scheme = before.rpartition("=")[2].lower()
    if not separator or scheme == "file":
        return
    host = rest.partition("/")[0]
    # In s3://key:secret@bucket the secret may contain a slash: then `host` ends before "@bucket", but has the
    # colon. A colon is also part of host:port and of an ARN (arn:aws:s3:...).
    has_secret = ":" in host and not host.startswith("arn:") and not host.rpartition(":")[2].isdigit()
    has_user = "@" in host and scheme not in _CONTAINER_SCHEMES
    if has_user or has_secret or _KEY_IN_QUERY.search(rest):
        raise ConfigError(
            f"{scheme}://...",
            "a URI without user, password or key",
            "a URI with one of them (not shown)",
            "take them out of the URI: credentials come from "
            + (f"the environment ({variables})" if variables else credentials_of(uri)),
        )


def refuse_web_address(uri: str) -> None:
    """Raise ConfigError for the address of a web page or an FTP server, which cannot be listed or written."""
    scheme = uri.partition("://")[0].lower()
    if scheme in ("http", "https", "ftp", "ftps"):
        raise ConfigError(
            uri,
            "a path, or the URI of a store such as s3://bucket/prefix",
            f"an address with {scheme}://",
            "download it first; for an encoder, a hub id has the form owner/name",
        )


def uri_of(path: str | Path) -> str:
    """Return a path as text. pathlib shortens the "://" of a URI to ":/"; restore it."""
    return re.sub(r"^([a-z][a-z0-9+.-]+):/(?!/)", r"\1://", str(path), count=1, flags=re.IGNORECASE)


def to_yaml(settings: Settings, indent: str = "", only: Collection[str] | None = None) -> str:
    """Return the resolved settings as YAML, with a comment above every key.

    Args:
        indent: spaces before every line.
        only: dotted keys to write; None for all.
    """
    lines: list[str] = []
    descriptions, values = type(settings).descriptions(), settings.model_dump(mode="json")
    for name, value in settings:
        only_below = None  # all keys of the section
        if only is not None and name not in only:
            only_below = [key.removeprefix(f"{name}.") for key in only if key.startswith(f"{name}.")]
            if not only_below:
                continue
        is_section = isinstance(value, Settings)
        comment = type(value).__doc__ if is_section else descriptions.get(name)
        wrapped = textwrap.wrap(" ".join((comment or "").split()), _COMMENT_WIDTH - len(indent))
        lines += [f"{indent}# {line}" for line in wrapped]
        if is_section:
            lines += [f"{indent}{name}:", to_yaml(value, f"{indent}  ", only_below)]
        else:
            text = yaml.safe_dump(values[name], default_flow_style=True, allow_unicode=True, width=10_000)
            lines.append(f"{indent}{name}: " + text.removesuffix("...\n").strip())
    return "\n".join(lines).rstrip("\n") + "\n"


def _explain(error: ValidationError, kind: type[Settings], source: _Source) -> ConfigError:
    """Return an error that explains the first problem and counts the others."""
    problems = error.errors()
    first, key = problems[0], _key(problems[0]["loc"])
    # For a value that may be of several types, pydantic lists one problem for each of them.
    same = [problem for problem in problems if _key(problem["loc"]) == key]
    name = ".".join(map(str, key))
    where = f"{source.of(name)}: {name or kind.__name__}"
    others = f" ({len(problems) - len(same)} more after this one)" if len(problems) > len(same) else ""
    if first["type"] == "extra_forbidden":
        unknown, known = first["loc"][-1], _keys_beside(kind, first["loc"])
        hint = did_you_mean(str(unknown), known, f"known here: {', '.join(known)}")
        return ConfigError(where, "a known key", f"the unknown key {unknown!r}", hint + others)
    if first["type"] == "missing":
        return ConfigError(where, "a value", "none", f"set {'.'.join(map(str, first['loc']))}{others}")
    given, expected = first.get("input"), ", or ".join(_expected(problem) for problem in same)
    allowed = [value for value in _QUOTED.findall(expected) if value != str(given)]
    hint = did_you_mean(str(given), allowed, _CORRECT)
    found = repr(given)
    if len(found) > _MAX_SHOWN:  # a whole section, whose settings contradict each other
        found = f"{found[:_MAX_SHOWN]} ..."
    return ConfigError(where, expected, found, hint + others)


def _expected(problem: Mapping[str, Any]) -> str:
    """Return the message of a problem, worded so that it can follow the word "expected"."""
    message = _SUPERFLUOUS.sub("", problem["msg"])
    if problem["type"] == "literal_error" and " or " in message:
        return f"one of {message}"
    if problem["type"] == "tuple_type":
        return "a list"
    if problem["type"].startswith(("greater_than", "less_than")):
        return f"a value {message}"
    return message[:1].lower() + message[1:]


def _key(location: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the parts of a key, without the type that pydantic appended to it."""
    return location[:-1] if location and _TRIED_TYPE.fullmatch(str(location[-1])) else location


def _keys_beside(kind: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """List the valid keys of the section that contains the key at `location`."""
    for part in location[:-1]:
        annotation = next((field.annotation for key, field in _keys(kind) if key == part), None)
        for each in (annotation, *get_args(annotation)):  # a section may be in a tuple, or None
            if isinstance(each, type) and issubclass(each, BaseModel):
                kind = each
                break
    return sorted(key for key, _ in _keys(kind))


def _keys(kind: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of a section with their keys in YAML."""
    return ((field.alias or name, field) for name, field in kind.model_fields.items())
