"""Open a folder of several encoders whose vectors are concatenated; it has one folder per encoder.

QuickThoughts (Logeswaran & Lee 2018) concatenates the vectors of its two encoders, [f; g].
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipeline.config import digest_of
from pipeline.errors import ModelError
from pipeline.models.folder.check_pooling import check_dim
from pipeline.models.folder.encoder_folder import JOINED, MASKED, EncoderFolder
from pipeline.models.folder.identity import module_identity
from pipeline.models.folder.modules import Module, Normalization, check_inside, read_json
from pipeline.models.folder.post_modules import chosen_ending
from pipeline.settings import EncoderSettings
from pipeline.store.files.cache import digest_of_file

PART_FOLDERS = ("0_First", "1_Second")
JOINED_CONFIG = {"model_type": JOINED, "parts": list(PART_FOLDERS)}
"""config.json of such a folder; its model_type keeps other libraries from loading one part instead of all"""
_CONFIG = "config.json"
# fields of EncoderFolder that decide how texts are read, equal in all parts
_READING_FIELDS = (
    "family",
    "max_length",
    "prompt",
    "query_prompt",
    "lower",
    "truncation_side",
    "template",
    "ends_sentences",
    "include_prompt",
)


def open_joined(
    path: Path, settings: EncoderSettings, open_part: Callable[[EncoderSettings], EncoderFolder]
) -> EncoderFolder:
    """Open a folder of several encoders.

    The settings apply to each part, except `encoder.dim`. The concatenated vectors are normalized if the
    settings say so or, by default, if the vectors of all parts are.

    Raises:
        ModelError: a part cannot be opened, or the parts read texts differently.
    """
    # with encoder.normalize=true, the concatenated vectors are normalized, not the vectors of each part
    of_parts = {"normalize": False if settings.normalize is False else None, "dim": None}
    parts = {
        name: open_part(settings.model_copy(update={"path": str(path / name), **of_parts}))
        for name in _part_names(path)
    }
    first, *others = parts.values()
    for other in others:
        check_same_reading(first, other)
    is_normalized = settings.normalize is None and all(part.normalize for part in parts.values())
    own_tail: list[Module] = [Normalization()] if is_normalized else []
    tail = [*own_tail, *chosen_ending(own_tail, settings.normalize, settings.dim)]
    width = sum(part.dim for part in parts.values())
    joined = replace(
        first,
        path=path,
        dim=width if settings.dim is None else min(width, settings.dim),
        tail=tuple(tail),
        parts=tuple(parts.values()),
        transformer=f"{next(iter(parts))}/{first.transformer}".rstrip("/"),
        weights=tuple(f"{name}/{file}" for name, part in parts.items() for file in part.weights),
        files={
            _CONFIG: digest_of_file(path / _CONFIG),
            **{f"{name}/{file}": sha for name, part in parts.items() for file, sha in part.files.items()},
        },
    )
    check_dim(joined, settings)
    identities = [module_identity(joined, module) for module in tail]
    space_id = digest_of({"joined": [part.space_id for part in parts.values()], "tail": identities})
    return replace(joined, space_id=space_id)


def _part_names(path: Path) -> list[str]:
    names = read_json(path / _CONFIG, required=True).get("parts")
    if isinstance(names, list):
        check_inside(path / _CONFIG, names)
        if len(names) >= 2 and all((path / name).is_dir() for name in names):
            return names
    raise ModelError(
        str(path / _CONFIG),
        "the names of two or more folders next to this file as parts",
        repr(names),
        "restore the folder",
    )


def check_same_reading(first: EncoderFolder, other: EncoderFolder) -> None:
    """Check that two encoders read texts the same way, because all parts get the tokens of the first one.

    Their poolings may differ, unless one of them reads the mask token of a template.

    Raises:
        ModelError: they read texts differently, or the first one uses counts of words.
    """
    if first.averaging.counts:
        raise ModelError(
            "encoder.frequencies",
            "none for concatenated encoders",
            str(first.averaging.counts),
            "set it to null, or encoder.path to the folder of one part",
        )
    different = [
        name.replace("_", " ") for name in _READING_FIELDS if getattr(first, name) != getattr(other, name)
    ]
    if (first.pooling == MASKED) != (other.pooling == MASKED):
        different.append("pooling")
    if _tokenizer_files(first) != _tokenizer_files(other):
        different.append("tokenizer")
    if different:
        raise ModelError(
            str(other.path),
            f"the same {', '.join(different)} as {first.path.name}",
            "different ones",
            "concatenate encoders that read texts the same way",
        )


def _tokenizer_files(folder: EncoderFolder) -> dict[str, str]:
    return {name: digest for name, digest in folder.files.items() if "token" in name or "vocab" in name}
