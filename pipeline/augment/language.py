"""Identify the language of a text by py3langid (Lui and Baldwin 2012): naive Bayes over byte sequences."""

import copy
import functools
from collections.abc import Sequence
from typing import Any

from pipeline.errors import ConfigError


def languages_of(texts: Sequence[str], among: Sequence[str] = ()) -> list[str]:
    """The likeliest language of each text, as an ISO 639-1 code. Thread-safe.

    Args:
        texts: the texts.
        among: the languages to choose from; all known ones if empty.

    Raises:
        ConfigError: as by `check_languages`.
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
    """The identifier restricted to some languages.

    It is a shallow copy, because set_languages would otherwise restrict all identifiers of the process.
    """
    if not among:
        return _full_identifier("language")
    check_languages(among, "languages")
    restricted = copy.copy(_full_identifier("languages"))
    restricted.set_languages(among)
    return restricted


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
            "py3langid, which identifies languages",
            "not installed",
            "pip install 'manta-embeddings[augment]', or set language to null",
        ) from None
