"""Read YAML files and `key.path=value` arguments as a tree of values. Only this module reads YAML."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import ConfigError

_MOST_VALUES = 100_000  # with aliases spelled out; a job has a few hundred
_MOST_BITS = 1_024  # bits of the largest integer; the largest float has as many
# PyYAML's errors for a text that does not fit its tag, such as !!bool x, !!int "", or the date 2026-99-99
_CONSTRUCTION_ERRORS = (ValueError, LookupError, AttributeError, TypeError, OverflowError)


class _Loader(yaml.SafeLoader):
    """YAML in which only true and false are booleans, as in YAML 1.2, and no key is repeated.

    PyYAML reads `mode: off` as false, and takes the last of equal keys.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ConfigError(
                f"line {node.start_mark.line + 1} of {node.start_mark.name}",
                "every key once",
                f"{twice!r} more than once",
                "remove all but one of them",
            )
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = int(super().construct_yaml_int(node))
        if value.bit_length() > _MOST_BITS:  # Python refuses to print it in an error message
            raise ValueError(f"an integer of {value.bit_length():,} bits")
        return value


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the sections of a YAML file. Raises ConfigError if it is missing or is not valid."""
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
        found = " ".join(str(error).split())
        raise ConfigError(str(file), "readable YAML", found, "correct the file") from None
    if not isinstance(tree, dict | None):
        raise ConfigError(
            str(file),
            "a mapping of sections (corpus: ..., encoder: ...)",
            type(tree).__name__,
            "see jobs/configs for examples",
        )
    return tree or {}


def override(tree: dict[str, Any], argument: str) -> None:
    """Set a value of the tree by an argument `key.path=value`. Raises ConfigError for an invalid argument."""
    path, equals, value = argument.partition("=")
    *sections, last = path.split(".")
    if not equals or not all((*sections, last)):
        found, remedy = "no =" if not equals else "an empty key", "write it like encode.unit_rows=4096"
        if argument.endswith((".yaml", ".yml")):
            remedy = f"to read settings from a file, write --config {argument}"
        raise ConfigError(f"argument {argument!r}", "key.path=value", found, remedy)
    for key in sections:
        if tree.get(key) is None:
            tree[key] = {}
        if not isinstance(tree[key], dict):
            raise ConfigError(
                f"argument {argument!r}",
                f"{key} to be a section",
                f"the value {tree[key]!r}",
                "check the key path",
            )
        tree = tree[key]
    try:
        tree[last] = _parsed(value, f"argument {argument!r}") if value else None
    except yaml.YAMLError:
        tree[last] = value  # an unquoted string that YAML reads as syntax, such as a glob


def leaves(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is neither a list nor a mapping, with its dotted key."""
    if not isinstance(tree, dict | list):
        yield key, tree
        return
    for name, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from leaves(value, f"{key}.{name}" if key else str(name))


def _parsed(text: str, name: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, or has aliases that would fill memory (`a: [*b, *b]`,
            `b: [*c, *c]` and so on).
    """
    loader = _Loader(text)
    loader.name = name
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _values(node, {}) > _MOST_VALUES:
            raise yaml.YAMLError(
                f"more than {_MOST_VALUES:,} values, where each alias counts as the values that it repeats"
            )
        return loader.construct_document(node)
    except (RecursionError, *_CONSTRUCTION_ERRORS) as error:  # lists nested a thousand deep
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from None
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values in a node, with its aliases spelled out.

    Args:
        known: counts by the id() of a node; 0 while a node is being counted.
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
        raise yaml.YAMLError(
            f"line {node.start_mark.line + 1}: an alias inside of the value of its own anchor"
        )
    return known[id(node)]
