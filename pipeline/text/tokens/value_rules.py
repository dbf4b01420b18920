"""Check the types of values in the JSON files of a model folder; rules of a tokenizer's files."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Required,  # before Python 3.12, pydantic requires this one
)

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pipeline.errors import ModelError


@dataclass(frozen=True)
class Rule:
    """Type that the values of some keys must have."""

    pattern: str
    """names of the files, as a shell pattern"""
    keys: tuple[str, ...]
    type: Any
    expected: str
    """the type in words, for errors"""

    @functools.cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Validator of a value."""
        return TypeAdapter(self.type)


class _Token(TypedDict, total=False):
    """A token with its options, as transformers writes an AddedToken."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    content: Required[str]
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""tokens with a role, in the order in which transformers adds them"""
_TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_TOKENS = list[str | _Token] | dict[str, str | _Token]
TOKENIZER_RULES = (
    Rule("tokenizer.json", ("added_tokens",), list[_Token], "a list of tokens"),
    Rule("tokenizer.json", ("model", "normalizer", "pre_tokenizer"), dict[str, Any], "an object"),
    *(
        Rule(file, NAMED_TOKENS, str | _Token, "a token or an object with its content")
        for file in _TOKEN_FILES
    ),
    *(
        Rule(file, ("additional_special_tokens", "extra_special_tokens"), _TOKENS, "a list of tokens")
        for file in _TOKEN_FILES
    ),
    Rule(
        "tokenizer_config.json",
        ("added_tokens_decoder",),
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], _Token],
        "tokens by their ids",
    ),
    # tokenizers without a limit have 1e30 here, as a whole number or not
    Rule(
        "tokenizer_config.json", ("model_max_length",), Annotated[float, Field(ge=0)], "a number, 0 or more,"
    ),
    Rule("tokenizer_config.json", ("tokenizer_class",), str, "a name"),
    Rule("tokenizer_config.json", ("model_input_names",), list[str], "a list of names"),
    Rule(
        "tokenizer_config.json",
        (
            *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"),
            *("add_bos_token", "add_eos_token", "split_special_tokens"),
        ),
        bool,
        "true or false",
    ),
)


def check_rules(rules: Iterable[Rule], file: Path, values: Mapping[str, Any]) -> None:
    """Check the types of a file's values. A value may be null or missing.

    Raises:
        ModelError: a value has another type; the message names file, key, expected and found.
    """
    for rule in rules:
        if not fnmatch(file.name, rule.pattern):
            continue
        for key in rule.keys:
            if (value := values.get(key)) is None:
                continue
            try:
                rule.adapter.validate_python(value, strict=True)
            except ValidationError:
                raise ModelError(
                    str(file), f"{rule.expected} as {key}", repr(value)[:60], "restore the file"
                ) from None
