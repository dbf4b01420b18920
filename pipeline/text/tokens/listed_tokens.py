"""Find the tokens that files beside tokenizer.json add to it, as transformers does.

Such a token is whole: its text is never split. tokenizer_config.json lists tokens by id
(added_tokens_decoder), by role (mask_token) and without a role (extra_special_tokens); older folders have
special_tokens_map.json and added_tokens.json.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import ModelError
from pipeline.text.tokens.tokenizer_files import (
    class_tokens,
    read_head,
    read_mapping,
    token_settings,
    token_text,
)
from pipeline.text.tokens.value_rules import NAMED_TOKENS


class ListedToken(NamedTuple):
    """A token with the options of an AddedToken of the tokenizers library."""

    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


def listed_tokens(folder: Path) -> list[ListedToken]:
    """List the tokens that tokenizer.json lacks, or has with other options, in the order of their new ids.

    Raises:
        ModelError: a file is damaged.
    """
    head = read_head(folder)
    if not head:
        return []  # without tokenizer.json, transformers builds the tokenizer with all its tokens
    own = {token["content"]: _listed(token) for token in head.get("added_tokens") or ()}
    settings = token_settings(folder)
    listed = {token.content: token for token in _by_id(folder, settings, own)}
    for token in _by_role(settings):
        if token.content not in own:
            listed.setdefault(token.content, token)
    if others := [content for content in class_tokens(folder) if content not in own]:
        model = read_mapping(folder / "tokenizer.json").get("model") or {}
        vocabulary = _names(model.get("vocab") or ())
        for content in filter(vocabulary.__contains__, others):
            listed.setdefault(content, _listed(content))
    return [token for token in listed.values() if _matching(token) != _matching(own.get(token.content))]


def _by_id(
    folder: Path, settings: Mapping[str, Any], own: Mapping[str, ListedToken]
) -> Iterator[ListedToken]:
    """Yield the tokens that are listed with their ids, in the order of the ids."""
    decoder = settings.get("added_tokens_decoder")
    if decoder is not None:
        for _, token in sorted(decoder.items(), key=lambda entry: int(entry[0])):
            yield _listed({"special": False} | token)
        return
    file, special = folder / "added_tokens.json", {token.content for token in _by_role(settings)}
    ids = read_mapping(file)
    if wrong := [content for content, number in ids.items() if type(number) is not int or not content]:
        raise ModelError(str(file), f"an id of {wrong[0]!r}", repr(ids[wrong[0]])[:60], "restore the file")
    for content, _ in sorted(ids.items(), key=lambda entry: int(entry[1])):
        if content not in own:
            yield _listed({"content": content, "special": content in special})


def _by_role(settings: Mapping[str, Any]) -> Iterator[ListedToken]:
    """Yield the tokens with a role, and then the other special tokens."""
    for name in (*NAMED_TOKENS, *(name for name in settings if name.endswith("_token"))):
        token = settings.get(name)
        if isinstance(token, (str, dict)) and token_text(token):
            yield _listed(token)
    others = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or ()
    for token in others.values() if isinstance(others, dict) else others:
        if token_text(token):
            yield _listed(token)


def _listed(token: str | Mapping[str, Any]) -> ListedToken:
    """Return a token of a file, with the defaults of the tokenizers library.

    A token that is written as a plain string is special.
    """
    options = {"content": token} if isinstance(token, str) else token
    special = bool(options.get("special", True))
    return ListedToken(
        content=str(options["content"]),
        single_word=bool(options.get("single_word")),
        lstrip=bool(options.get("lstrip")),
        rstrip=bool(options.get("rstrip")),
        normalized=bool(options.get("normalized", not special)),
        special=special,
    )


def _matching(token: ListedToken | None) -> tuple[str | bool, ...]:
    """Return the options that decide where a token is found in a text."""
    return () if token is None else token[:-1]


def _names(vocabulary: Mapping[str, int] | Iterable[Any]) -> set[str]:
    """Return the tokens of a model's vocabulary, whose form depends on the type of the model."""
    return {token if isinstance(token, str) else str(token[0]) for token in vocabulary}
