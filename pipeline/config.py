"""YAML and `key.path=value` overrides become settings: frozen values, checked where they are made."""

import ast
import difflib
import functools
import hashlib
import inspect
import json
import math
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import ConfigError


class Settings(BaseModel):
    """A frozen value equal to its YAML: pickles, compares and hashes by content; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """The values that are not defaults, for a repr that says what is special."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if field.is_required() or value != field.get_default(call_default_factory=True):
                yield name, value

    def content_id(self) -> str:
        """sha256 (hex) of the resolved values."""
        return digest_of(self.model_dump(mode="json"))

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """The docstring below each field, by the field's name.

        Read from the source when asked for: with pydantic's `use_attribute_docstrings` each command reads all
        sources.
        """
        found: dict[str, str] = {}
        for kind in reversed(cls.__mro__):
            found |= _described_fields(kind.__module__).get(kind.__qualname__, {})
        return found


@functools.cache
def _described_fields(module: str) -> dict[str, dict[str, str]]:
    """Docstrings below fields, by class and field, of a module's classes; none without a source, as at a
    prompt.
    """
    try:
        declared = ast.parse(inspect.getsource(sys.modules[module])).body
    except (OSError, TypeError):
        return {}
    return {
        kind.name: {
            field.target.id: inspect.cleandoc(text)
            for field, below in pairwise(kind.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and (text := _string(below))
        }
        for kind in declared
        if isinstance(kind, ast.ClassDef)
    }


def _string(statement: ast.stmt) -> str | None:
    """The string that a statement consists of; None for any other statement."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return None
    return statement.value.value if isinstance(statement.value.value, str) else None


S = TypeVar("S", bound=Settings)

_TRIED = re.compile(
    r"(constrained-)?(int|float|str|bool)|literal\[.*\]"
)  # what pydantic appends to the place of a value that may be of several kinds
_QUOTED = re.compile(r"'([^']+)'")  # the values that a message allows
_MOST_VALUES = 100_000
_KEY_IN_QUERY = re.compile(r"[?&][^=&/]*(key|secret|token|pass|pwd|sig|credential)[^=&/]*=", re.IGNORECASE)


class _Loader(yaml.SafeLoader):
    """YAML in which only true and false are booleans, as in YAML 1.2: `mode: off` is the word; and in which a
    key stands once, where PyYAML takes the last.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            where = f"line {node.start_mark.line + 1} of {node.start_mark.name.strip('<>')}"
            raise ConfigError(where, "every key once", f"{twice!r} more than once", "leave one of them")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def canonical(value: Any) -> bytes:
    """One JSON for equal values: sorted keys, no white space, UTF-8. Not-a-number is refused."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_of(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def load_settings(kind: type[S], file: str | Path | None = None, overrides: tuple[str, ...] = ()) -> S:
    """Settings of `kind` from a YAML file, then `key.path=value` overrides (values are YAML too: `a.b=[1,
    2]`). ConfigError for a URI with credentials in it, and for a number that is not finite.
    """
    if file is not None:
        refuse_credentials(uri_of(file))
    tree = _read_yaml(Path(file)) if file is not None else {}
    for override in overrides:
        refuse_credentials(override)  # the whole of it: of a forgotten key everything would be shown
        _override(tree, override)
    source = str(file or "command line")
    for place, value in _leaves(tree):
        if isinstance(value, str):
            refuse_credentials(value)
        elif isinstance(value, float) and not math.isfinite(
            value
        ):  # no JSON has them, and what defines a job is kept as JSON
            raise ConfigError(
                f"{source}: {place}",
                "a finite number",
                f"{value}",
                "mend the value; --print-config shows all settings",
            )
    return validated(kind, tree, source)


def validated(kind: type[S], tree: Mapping[str, Any], source: str) -> S:
    """Settings of `kind` from a tree of values; ConfigError that begins with `source` where they do not fit."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise _explain(error, kind, source) from None


def refuse_credentials(uri: str) -> None:
    """ConfigError, without the secret, for a URI that has a user, a password or a key in it: URIs are kept in
    manifests and shown in logs.
    """
    before, sign, rest = uri.partition("://")
    scheme = before.rpartition("=")[2]
    if not sign or scheme == "file":
        return
    host = rest.partition("/")[0]
    # a secret key may hold a slash: then what ends the host is a part of the secret, and only the colon tells
    user = "@" in host or (
        ":" in host and not host.startswith("arn:") and not host.rpartition(":")[2].isdigit()
    )
    if user or _KEY_IN_QUERY.search(rest):
        remedy = (
            "take them out of the URI: credentials come from the environment (AWS_ACCESS_KEY_ID and so on) "
            "or from the machine's role"
        )
        raise ConfigError(
            f"{scheme}://...", "a URI without user, password or key", "one with them (not shown here)", remedy
        )


def uri_of(path: str | Path) -> str:
    """The URI that a path was made of, which has one slash where the URI has two; any other path as it is."""
    return re.sub(r"^([a-z][a-z0-9+.-]+):/(?!/)", r"\1://", str(path), count=1, flags=re.IGNORECASE)


def _leaves(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Each value that is no list or mapping, with its dotted place."""
    if not isinstance(tree, dict | list):
        yield place, tree
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _leaves(value, f"{place}.{key}" if place else str(key))


def to_yaml(settings: Settings, indent: str = "", only: Collection[str] | None = None) -> str:
    """The resolved settings, every key below its comment. only: dotted keys to write; None: all."""
    lines, descriptions = [], type(settings).descriptions()
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        section = isinstance(value, Settings)
        below = (
            None
            if only is None or name in only
            else [key.removeprefix(f"{name}.") for key in only if key.startswith(f"{name}.")]
        )
        if below == []:
            continue
        comment = type(value).__doc__ if section else descriptions.get(name)
        lines += [
            f"{indent}# {line}"
            for line in textwrap.wrap(" ".join((comment or "").split()), 150 - len(indent))
        ]
        lines += (
            [f"{indent}{name}:", to_yaml(value, indent + "  ", below)]
            if section
            else [f"{indent}{name}: {_yaml_value(settings, name)}"]
        )
    return "\n".join(lines).rstrip("\n") + "\n"


def _yaml_value(settings: Settings, name: str) -> str:
    value = settings.model_dump(mode="json", include={name})[name]
    return (
        yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
        .removesuffix("...\n")
        .strip()
    )


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        tree = _parsed(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        raise ConfigError(
            str(file),
            "a YAML file",
            "no such file",
            "give its path with --config; jobs/configs holds examples",
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(str(file), "readable YAML", " ".join(str(error).split()), "mend the file") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            str(file),
            "a mapping of sections (corpus: ..., encoder: ...)",
            type(tree).__name__,
            "see jobs/configs for examples",
        )
    return tree


def _parsed(text: str, name: str) -> Any:
    """The value that a YAML text means.

    YAMLError for what is no YAML, and for aliases that would fill memory (`a: [*b, *b]`, `b: [*c, *c]` and so
    on).
    """
    loader = _Loader(text)
    loader.name = name
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _values(node, {}) > _MOST_VALUES:
            raise yaml.YAMLError(
                f"more than {_MOST_VALUES:,} values, each alias counted as what it stands for"
            )
        return loader.construct_document(node)
    except (RecursionError, ValueError) as error:  # lists in lists by the thousand; a date such as 2026-99-99
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from None
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values that a node holds with its aliases spelled out.

    known: counts of earlier nodes, 0 while one is being counted.
    """
    if id(node) not in known:
        known[id(node)] = 0
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        known[id(node)] = 1 + sum(
            _values(each, known)
            for child in children
            for each in (child if isinstance(child, tuple) else (child,))
        )
    if known[id(node)] == 0:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: a value that is part of itself")
    return known[id(node)]


def _override(tree: dict[str, Any], override: str) -> None:
    path, equals, value = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise ConfigError(
            f"argument {override!r}",
            "key.path=value",
            "no such form",
            "write for instance encode.unit_rows=4096",
        )
    try:
        parsed = _parsed(value, "unicode string") if value else None
    except yaml.YAMLError:
        parsed = value  # an unquoted string that YAML reads as syntax, such as a glob
    for key in keys[:-1]:
        child = tree.setdefault(key, {})
        if child is None:
            child = tree[key] = {}
        if not isinstance(child, dict):
            raise ConfigError(
                f"argument {override!r}",
                f"{key} to be a section",
                f"the value {child!r}",
                "check the key path",
            )
        tree = child
    tree[keys[-1]] = parsed


def _explain(error: ValidationError, kind: type[Settings], source: str) -> ConfigError:
    """The first problem as a sentence; the number of the others beside it."""
    problems = error.errors()
    first = problems[0]
    place = _place(first["loc"])
    same = [
        problem for problem in problems if _place(problem["loc"]) == place
    ]  # a value that may be of several kinds is none of them: one problem
    where = f"{source}: {'.'.join(map(str, place)) or kind.__name__}"
    others = f" ({len(problems) - len(same)} more after this one)" if len(problems) > len(same) else ""
    if first["type"] == "extra_forbidden":
        known = _keys_beside(kind, first["loc"])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return ConfigError(where, "a known key", f"the unknown key {first['loc'][-1]!r}", hint + others)
    if first["type"] == "missing":
        return ConfigError(
            where, "a value", "none", f"set {'.'.join(str(part) for part in first['loc'])}" + others
        )
    messages = [problem["msg"].removeprefix("Value error, ") for problem in same]
    expected = ", or ".join(message[:1].lower() + message[1:] for message in messages)
    given = str(first.get("input"))
    near = difflib.get_close_matches(
        given, [each for each in _QUOTED.findall(expected) if each != given], n=1
    )
    hint = f"did you mean {near[0]!r}?" if near else "mend the value; --print-config shows all settings"
    return ConfigError(where, expected, repr(first.get("input")), hint + others)


def _place(location: tuple[Any, ...]) -> tuple[Any, ...]:
    """The keys of a place, without the kind of value that pydantic tried there."""
    return location[:-1] if location and _TRIED.fullmatch(str(location[-1])) else location


def _keys_beside(kind: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    for part in location[:-1]:
        field = next((each for name, each in kind.model_fields.items() if (each.alias or name) == part), None)
        annotation = field.annotation if field else None
        inner = (
            each
            for each in (annotation, *get_args(annotation))
            if isinstance(each, type) and issubclass(each, BaseModel)
        )  # also in a tuple, or None
        kind = next(inner, kind)
    return sorted(each.alias or name for name, each in kind.model_fields.items())
