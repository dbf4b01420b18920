"""Several encoders as one, whose vectors stand side by side: a folder with a folder for each (QuickThoughts:
Logeswaran & Lee 2018, whose product is [f; g]).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import digest_of
from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import JOINED, EncoderFolder
from pipeline.models.folder.modules import check_inside, read_json
from pipeline.settings import EncoderSettings
from pipeline.store.cache import digest_of_file

PARTS = ("0_First", "1_Second")
_CONFIG = "config.json"


def described(parts: tuple[str, ...] = PARTS) -> dict[str, Any]:
    """What config.json says of such a folder.

    A model_type that other libraries do not know keeps them from loading a part as if it were the whole.
    """
    return {"model_type": JOINED, "parts": list(parts)}


def open_joined(
    path: Path, settings: EncoderSettings, open_part: Callable[[EncoderSettings], EncoderFolder]
) -> EncoderFolder:
    """The encoder of such a folder.

    What the settings override they override in each part; its vectors have length one where those of all
    parts have, and of the whole. ModelError where a part cannot be opened, and where parts read texts
    differently.
    """
    raw = False if settings.normalize is False else None  # asked for, it is the whole that is normalised
    parts = {
        name: open_part(settings.model_copy(update={"path": str(path / name), "normalize": raw}))
        for name in _names(path)
    }
    first, *others = parts.values()
    for other in others:
        _check_alike(first, other)
    whole = (
        settings.normalize
        if settings.normalize is not None
        else all(part.normalize for part in parts.values())
    )
    tail = ("normalize",) if whole else ()
    return replace(
        first,
        path=path,
        dim=sum(part.dim for part in parts.values()),
        tail=tail,
        parts=tuple(parts.values()),
        transformer=f"{next(iter(parts))}/{first.transformer}".rstrip("/"),
        weights=tuple(f"{name}/{file}" for name, part in parts.items() for file in part.weights),
        files=_files(path, parts),
        space_id=digest_of({"joined": [part.space_id for part in parts.values()], "tail": tail}),
    )


def _names(path: Path) -> list[str]:
    names = read_json(path / _CONFIG, required=True).get("parts")
    check_inside(path / _CONFIG, names if isinstance(names, list) else ())
    if (
        not isinstance(names, list)
        or len(names) < 2
        or not all(isinstance(name, str) and (path / name).is_dir() for name in names)
    ):
        raise ModelError(
            str(path / _CONFIG),
            "the names of two folders or more beside it as parts",
            repr(names),
            "restore the folder",
        )
    return names


def _files(path: Path, parts: Mapping[str, EncoderFolder]) -> dict[str, str]:
    own = {_CONFIG: digest_of_file(path / _CONFIG)}
    return own | {
        f"{name}/{file}": digest for name, part in parts.items() for file, digest in part.files.items()
    }


def _check_alike(first: EncoderFolder, other: EncoderFolder) -> None:
    """Tokens go through all parts as the first one reads them."""
    if first.averages.counts:
        raise ModelError(
            "encoder.frequencies",
            "none for encoders side by side",
            str(first.averages.counts),
            "set it to null, or name one of the parts",
        )
    apart = [name for name, (one, two) in _reading(first, other).items() if one != two]
    if apart:
        raise ModelError(
            str(other.path),
            f"the same {', '.join(apart)} as {first.path.name}",
            "others",
            "join encoders that read texts alike",
        )


def _reading(first: EncoderFolder, other: EncoderFolder) -> dict[str, tuple[Any, Any]]:
    names = (
        "family",
        "max_length",
        "pooling",
        "prompt",
        "query_prompt",
        "lower",
        "cuts",
        "template",
        "ends_sentences",
        "include_prompt",
    )
    tokenizers = [
        {name: digest for name, digest in part.files.items() if "token" in name or "vocab" in name}
        for part in (first, other)
    ]
    return {name.replace("_", " "): (getattr(first, name), getattr(other, name)) for name in names} | {
        "tokenizer": (tokenizers[0], tokenizers[1])
    }
