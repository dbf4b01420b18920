"""How an encoder averages tokens: which ones it leaves out, how it weighs words, and the word counts behind
both. Imports neither torch nor transformers.
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
    """As the settings ask for it; all tokens alike by default."""

    exclude: tuple[str, ...] = ()
    """kinds of tokens that averages leave out"""
    frequent: int = 0
    """how many tokens `frequent` leaves out; 0 where it is not asked for"""
    sif: float | None = None
    counts: Path | None = None
    """file of the word counts, where `frequent` or `sif` needs them"""

    def identity(self, files: Mapping[str, str]) -> dict[str, Any]:
        """What of it vectors depend on; nothing by default. files: sha256 by name."""
        found: dict[str, Any] = {"exclude": [*self.exclude, self.frequent]} if self.exclude else {}
        if self.sif is not None:
            found["sif"] = self.sif
        return found | ({"frequencies": files[FREQUENCIES]} if self.counts else {})


def averages_of(
    settings: EncoderSettings, path: Path, model_type: str, pooling: tuple[str, ...], *, words: bool
) -> Averages:
    """Of the encoder at `path`; words: it is a table of word vectors.

    Counts that lie in the folder count: a copy of an encoder needs nothing else.

    ModelError for a pooling that the encoder cannot do, for settings of averages where there is none, and for
    counts that are not there.
    """
    _check(settings, model_type, pooling, words)
    needed = settings.sif is not None or "frequent" in settings.exclude
    return Averages(
        exclude=tuple(sorted(set(settings.exclude))),
        frequent=settings.frequent if "frequent" in settings.exclude else 0,
        sif=settings.sif,
        counts=_counts(settings, path / FREQUENCIES) if needed else None,
    )


def _check(settings: EncoderSettings, model_type: str, pooling: tuple[str, ...], words: bool) -> None:
    found, chosen = repr("+".join(pooling)), [POOLINGS[name] for name in pooling]
    if words and not all(each.words for each in chosen):
        names = ", ".join(each.name for each in POOLINGS.values() if each.words)
        raise ModelError("encoder.pooling", f"one of {names} for word vectors", found, "choose one of these")
    if settings.exclude and all(each.token for each in chosen):
        raise ModelError(
            "encoder.exclude",
            "a pooling over all tokens, such as mean or table",
            found,
            "choose such a pooling, or exclude nothing",
        )
    if settings.sif is None:
        return
    if not words:
        remedy = (
            "name a file of word vectors, or set encoder.sif to null; encoder.exclude: [frequent] works "
            "with this model"
        )
        raise ModelError(
            "encoder.sif", "word vectors at encoder.path", f"the {model_type} model {settings.path}", remedy
        )
    if not all(each.sif for each in chosen):
        names = ", ".join(each.name for each in POOLINGS.values() if each.sif)
        remedy = "choose one of these, or set encoder.sif to null"
        raise ModelError("encoder.sif", f"one of the poolings {names}", found, remedy)


def _counts(settings: EncoderSettings, own: Path) -> Path:
    if own.is_file():
        return own
    if settings.frequencies is None:
        what = "encoder.exclude: frequent" if settings.sif is None else "encoder.sif"
        raise ModelError(
            what,
            "how often words occur, in encoder.frequencies",
            "null",
            "name a Parquet file with the columns word and count",
        )
    return locate_frequencies(settings.frequencies)
