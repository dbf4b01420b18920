"""Which language a text is in, by py3langid (Lui and Baldwin 2012): naive Bayes over byte sequences, from a model of 5 MB that comes with the package."""

import copy
import functools
from collections.abc import Sequence
from typing import Any

from pipeline.errors import ConfigError


def languages_of(texts: Sequence[str], among: Sequence[str] = ()) -> list[str]:
    """The likeliest language of each text, as an ISO 639 code, of `among` (none named: of all that are known). Safe to call from several threads: nothing is set.

    ConfigError as of `check_languages`.
    """
    classify = _identifier(tuple(sorted(set(among)))).classify
    return [classify(text)[0] for text in texts]


def check_languages(codes: Sequence[str], where: str) -> None:
    """ConfigError, which begins with `where`, for a code that is not known, and where py3langid is not installed."""
    known = _all(where).labels
    for code in codes:
        if code not in known:
            raise ConfigError(
                where,
                "the ISO 639 code of a language that is known",
                repr(code),
                f"known: {', '.join(known)}",
            )


@functools.cache
def _identifier(among: tuple[str, ...]) -> Any:
    """One for each choice of languages, all over the same tables: restricting the package's own one would change it for everybody in the program."""
    if not among:
        return _all("language")
    check_languages(among, "languages")
    restricted = copy.copy(_all("languages"))
    restricted.set_languages(among)
    return restricted


@functools.cache
def _loaded() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)


def _all(where: str) -> Any:
    try:
        return _loaded()
    except ImportError:
        raise ConfigError(
            where,
            "py3langid, which tells languages",
            "not installed",
            "pip install 'manta-embeddings[augment]', or set language to null",
        ) from None
