"""Settings of poolings that average tokens: excluded tokens, SIF weights, and the word counts these need.

Imports neither torch nor transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.folder.frequencies import FREQUENCIES, locate_frequencies
from pipeline.models.spec.pooling import POOLINGS
from pipeline.settings import EncoderSettings


@dataclass(frozen=True)
class TokenAveraging:
    """Settings of averages over tokens; by default all tokens count alike."""

    exclude: tuple[str, ...] = ()
    """kinds of tokens that averages leave out"""
    frequent: int = 0
    """number of tokens that the kind "frequent" leaves out; 0 if `exclude` does not have that kind"""
    sif: float | None = None
    """smoothing parameter of SIF weights; None: words are not weighted"""
    counts: Path | None = None
    """file of the word counts; None if neither `frequent` nor `sif` needs them"""

    def identity(self, files: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings that vectors depend on; {} by default.

        Args:
            files: sha256 of the encoder's files by name.
        """
        return {
            **({"exclude": [*self.exclude, self.frequent]} if self.exclude else {}),
            **({"sif": self.sif} if self.sif is not None else {}),
            **({"frequencies": files[FREQUENCIES]} if self.counts else {}),
        }


def resolve_averaging(
    settings: EncoderSettings, path: Path, model_type: str, pooling: tuple[str, ...], *, words: bool
) -> TokenAveraging:
    """Resolve the settings for an encoder.

    Word counts stored in the folder take precedence, so a copied folder is self-contained.

    Args:
        settings: settings of the encoder.
        path: the encoder's folder.
        model_type: value of config.json, for errors.
        pooling: names of the encoder's poolings.
        words: True for a table of word vectors.

    Raises:
        ModelError: word vectors do not allow a pooling, `exclude` or `sif` does not fit the pooling or the
            encoder, or word counts are missing.
    """
    _check_fit(settings, model_type, pooling, words)
    needs_counts = settings.sif is not None or "frequent" in settings.exclude
    return TokenAveraging(
        exclude=tuple(sorted(set(settings.exclude))),
        frequent=settings.frequent if "frequent" in settings.exclude else 0,
        sif=settings.sif,
        counts=_locate_counts(settings, path / FREQUENCIES) if needs_counts else None,
    )


def refuse_if(condition: object, where: str, expected: str, found: str, remedy: str) -> None:
    """Raise ModelError with the other arguments if the condition is true."""
    if condition:
        raise ModelError(where, expected, found, remedy)


def _check_fit(settings: EncoderSettings, model_type: str, pooling: tuple[str, ...], words: bool) -> None:
    found, chosen = repr("+".join(pooling)), [POOLINGS[name] for name in pooling]
    sif = settings.sif is not None
    refuse_if(
        words and not all(each.words for each in chosen),
        "encoder.pooling",
        f"one of {', '.join(each.name for each in POOLINGS.values() if each.words)} for word vectors",
        found,
        "choose one of these",
    )
    refuse_if(
        settings.exclude and all(each.token for each in chosen),
        "encoder.exclude",
        "a pooling over all tokens, such as mean or table",
        found,
        "choose such a pooling, or exclude nothing",
    )
    refuse_if(
        sif and not words,
        "encoder.sif",
        "word vectors at encoder.path",
        f"the {model_type} model {settings.path}",
        "name a file of word vectors, or set encoder.sif to null; encoder.exclude: [frequent] works "
        "with this model",
    )
    refuse_if(
        sif and not all(each.sif for each in chosen),
        "encoder.sif",
        f"one of the poolings {', '.join(each.name for each in POOLINGS.values() if each.sif)}",
        found,
        "choose one of these, or set encoder.sif to null",
    )


def _locate_counts(settings: EncoderSettings, in_folder: Path) -> Path:
    if in_folder.is_file():
        return in_folder
    if settings.frequencies is None:
        raise ModelError(
            "encoder.exclude: frequent" if settings.sif is None else "encoder.sif",
            "a file of word counts in encoder.frequencies",
            "null",
            "name a Parquet file with the columns word and count",
        )
    return locate_frequencies(settings.frequencies)
