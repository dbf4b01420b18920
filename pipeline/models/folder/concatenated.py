"""Several encoders as one, with concatenated vectors: a folder with one folder per encoder.

QuickThoughts (Logeswaran & Lee 2018) concatenates its two encoders, [f; g].
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipeline.config import digest_of
from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import JOINED, EncoderFolder
from pipeline.models.folder.modules import check_inside, read_json
from pipeline.settings import EncoderSettings
from pipeline.store.cache import digest_of_file

PART_FOLDERS = ("0_First", "1_Second")
JOINED_CONFIG = {"model_type": JOINED, "parts": list(PART_FOLDERS)}
"""config.json of such a folder; its model_type keeps other libraries from loading a part as the whole"""
_CONFIG = "config.json"
_READING = (
    *("family", "max_length", "pooling", "prompt", "query_prompt", "lower", "cuts", "template"),
    *("ends_sentences", "include_prompt"),
)


def open_joined(
    path: Path, settings: EncoderSettings, open_part: Callable[[EncoderSettings], EncoderFolder]
) -> EncoderFolder:
    """Open a folder of several encoders.

    Settings override those of each part. The vectors are normalized if the settings say so or, by default, if
    those of all parts are.

    Raises:
        ModelError: a part cannot be opened, or the parts read texts differently.
    """
    raw = False if settings.normalize is False else None  # true normalizes the whole, not each part
    parts = {
        name: open_part(settings.model_copy(update={"path": str(path / name), "normalize": raw}))
        for name in _names(path)
    }
    first, *others = parts.values()
    for other in others:
        _check_alike(first, other)
    by_default = all(part.normalize for part in parts.values())
    tail = ("normalize",) if settings.normalize or (settings.normalize is None and by_default) else ()
    return replace(
        first,
        path=path,
        dim=sum(part.dim for part in parts.values()),
        tail=tail,
        parts=tuple(parts.values()),
        transformer=f"{next(iter(parts))}/{first.transformer}".rstrip("/"),
        weights=tuple(f"{name}/{file}" for name, part in parts.items() for file in part.weights),
        files={
            _CONFIG: digest_of_file(path / _CONFIG),
            **{f"{name}/{file}": sha for name, part in parts.items() for file, sha in part.files.items()},
        },
        space_id=digest_of({"joined": [part.space_id for part in parts.values()], "tail": tail}),
    )


def _names(path: Path) -> list[str]:
    names = read_json(path / _CONFIG, required=True).get("parts")
    if isinstance(names, list):
        check_inside(path / _CONFIG, names)
        if len(names) >= 2 and all((path / name).is_dir() for name in names):
            return names
    raise ModelError(
        str(path / _CONFIG),
        "the names of two folders or more beside it as parts",
        repr(names),
        "restore the folder",
    )


def _check_alike(first: EncoderFolder, other: EncoderFolder) -> None:
    """Check that two parts read texts alike: all parts get the tokens of the first one."""
    if first.averages.counts:
        raise ModelError(
            "encoder.frequencies",
            "none for concatenated encoders",
            str(first.averages.counts),
            "set it to null, or name one of the parts",
        )
    different = [name.replace("_", " ") for name in _READING if getattr(first, name) != getattr(other, name)]
    if _tokenizer_files(first) != _tokenizer_files(other):
        different.append("tokenizer")
    if different:
        raise ModelError(
            str(other.path),
            f"the same {', '.join(different)} as {first.path.name}",
            "others",
            "join encoders that read texts alike",
        )


def _tokenizer_files(folder: EncoderFolder) -> dict[str, str]:
    return {name: digest for name, digest in folder.files.items() if "token" in name or "vocab" in name}
