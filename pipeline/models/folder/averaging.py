"""Averages over tokens: the tokens they leave out, weights of words, and the word counts that both need.

Imports neither torch nor transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.folder.frequencies import FREQUENCIES, locate_frequencies
from pipeline.models.layers.pooling import POOLINGS
from pipeline.settings import EncoderSettings


@dataclass(frozen=True)
class Averages:
    """Settings of averages over tokens; by default all tokens count alike."""

    exclude: tuple[str, ...] = ()
    """kinds of tokens that averages leave out"""
    frequent: int = 0
    """number of tokens that `frequent` leaves out; 0 if it is not among `exclude`"""
    sif: float | None = None
    """smoothing parameter of SIF weights; None: words are not weighted"""
    counts: Path | None = None
    """file of the word counts, if `frequent` or `sif` needs them"""

    def identity(self, files: Mapping[str, str]) -> dict[str, Any]:
        """Settings that vectors depend on; {} by default. files: sha256 by name."""
        return {
            **({"exclude": [*self.exclude, self.frequent]} if self.exclude else {}),
            **({"sif": self.sif} if self.sif is not None else {}),
            **({"frequencies": files[FREQUENCIES]} if self.counts else {}),
        }


def averages_of(
    settings: EncoderSettings, path: Path, model_type: str, pooling: tuple[str, ...], *, words: bool
) -> Averages:
    """Resolve the settings for an encoder.

    Word counts stored in the folder take precedence, so a copied folder is self-contained.

    Args:
        settings: of the encoder.
        path: its folder.
        model_type: as config.json has it, for errors.
        pooling: names of its poolings.
        words: it is a table of word vectors.

    Raises:
        ModelError: the encoder does not support a pooling, the settings need averages or word vectors and
            there are none, or word counts are missing.
    """
    _check(settings, model_type, pooling, words)
    needed = settings.sif is not None or "frequent" in settings.exclude
    return Averages(
        exclude=tuple(sorted(set(settings.exclude))),
        frequent=settings.frequent if "frequent" in settings.exclude else 0,
        sif=settings.sif,
        counts=_counts(settings, path / FREQUENCIES) if needed else None,
    )


def refuse(*checks: tuple[object, str, str, str, str]) -> None:
    """Raise for the first check that applies.

    Args:
        checks: whether the check applies, then where, expected, found and remedy.

    Raises:
        ModelError: of the first check whose first value is true.
    """
    for applies, where, expected, found, remedy in checks:
        if applies:
            raise ModelError(where, expected, found, remedy)


def _check(settings: EncoderSettings, model_type: str, pooling: tuple[str, ...], words: bool) -> None:
    found, chosen = repr("+".join(pooling)), [POOLINGS[name] for name in pooling]
    sif = settings.sif is not None
    refuse(
        (
            words and not all(each.words for each in chosen),
            "encoder.pooling",
            f"one of {', '.join(each.name for each in POOLINGS.values() if each.words)} for word vectors",
            found,
            "choose one of these",
        ),
        (
            settings.exclude and all(each.token for each in chosen),
            "encoder.exclude",
            "a pooling over all tokens, such as mean or table",
            found,
            "choose such a pooling, or exclude nothing",
        ),
        (
            sif and not words,
            "encoder.sif",
            "word vectors at encoder.path",
            f"the {model_type} model {settings.path}",
            "name a file of word vectors, or set encoder.sif to null; encoder.exclude: [frequent] works "
            "with this model",
        ),
        (
            sif and not all(each.sif for each in chosen),
            "encoder.sif",
            f"one of the poolings {', '.join(each.name for each in POOLINGS.values() if each.sif)}",
            found,
            "choose one of these, or set encoder.sif to null",
        ),
    )


def _counts(settings: EncoderSettings, own: Path) -> Path:
    if own.is_file():
        return own
    if settings.frequencies is None:
        raise ModelError(
            "encoder.exclude: frequent" if settings.sif is None else "encoder.sif",
            "how often words occur, in encoder.frequencies",
            "null",
            "name a Parquet file with the columns word and count",
        )
    return locate_frequencies(settings.frequencies)
