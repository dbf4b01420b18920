"""Identify the language of a text by py3langid: naive Bayes over byte sequences (Lui and Baldwin 2012)."""

import copy
import functools
from collections.abc import Sequence
from typing import Any

from pipeline.errors import ConfigError


def languages_of(texts: Sequence[str], among: Sequence[str] = ()) -> list[str]:
    """Return the likeliest language of each text, as an ISO 639-1 code. Thread-safe.

    Args:
        texts: the texts.
        among: known codes of the languages to choose from; empty for all languages that py3langid knows.

    Raises:
        ConfigError: py3langid is not installed.
    """
    classify = _identifier(tuple(sorted(set(among)))).classify
    return [classify(text)[0] for text in texts]


def check_languages(codes: Sequence[str], where: str) -> None:
    """Raise ConfigError at setting `where` if a code is unknown or py3langid is not installed."""
    known = _full_identifier(where).labels
    for code in codes:
        if code not in known:
            raise ConfigError(
                where, "the ISO 639 code of a known language", repr(code), f"known: {', '.join(known)}"
            )


@functools.cache
def _identifier(among: tuple[str, ...]) -> Any:
    """Return the identifier, restricted to the languages `among` if there are any.

    A restricted identifier is a shallow copy, so that `set_languages` does not restrict the others.
    """
    identifier = _full_identifier("language")
    if among:
        identifier = copy.copy(identifier)
        identifier.set_languages(among)
    return identifier


@functools.cache
def _load() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)


def _full_identifier(where: str) -> Any:
    try:
        return _load()
    except ImportError:
        raise ConfigError(
            where,
            "the package py3langid, which identifies languages",
            "not installed",
            "pip install 'manta-embeddings[augment]', or set language to null",
        ) from None
