"""Read which modules an encoder folder of sentence-transformers has, and its pooling.

Imports neither torch nor transformers.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pipeline.errors import ModelError
from pipeline.models.folder.json_checks import check_values
from pipeline.models.spec.pooling import POOLINGS, ST_FLAGS, ST_NAMES

OWN_MODULES = "template_modules"  # name of the Python file in a folder that has modules of this project
_OWN_KINDS = {f"{OWN_MODULES}.MaskPooling": "Pooling", f"{OWN_MODULES}.Denoise": "Denoising"}
STATIC_EMBEDDING = "StaticEmbedding"
# supported modules of sentence-transformers
_KINDS = ("Dense", "Dropout", "Normalize", "Pooling", STATIC_EMBEDDING, "Transformer")
# modules that compute a folder's pooled vectors
_POOLED_STATES, _POOLED_TABLE = ("Transformer", "Pooling"), (STATIC_EMBEDDING,)


@dataclass(frozen=True)
class Dense:
    """Linear layer with activation."""

    weights: str
    """path in the folder"""
    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool


@dataclass(frozen=True)
class Denoising:
    """Subtract the vector of the template without a text (PromptBERT, Jiang et al. 2022, section 4.3).

    The subtracted vector depends on the text's length. sentence-transformers has no such module.
    """

    weights: str
    """path in the folder"""
    width: int
    activation: str | None
    """activation of a dense layer that is applied to both vectors first; None: there is no such layer"""
    epsilon: float
    """epsilon of that layer's normalization"""
    shortest: int
    """tokens of an empty text in its template"""


@dataclass(frozen=True)
class Truncation:
    """Keep the first `width` components, without normalizing again (Matryoshka, Kusupati et al. 2022).

    sentence-transformers has it as truncate_dim, after all other modules.
    """

    width: int


@dataclass(frozen=True)
class Normalization:
    """Divide by the Euclidean norm."""


Module = Dense | Denoising | Truncation | Normalization
"""a module after the pooling"""


class ModuleEntry(NamedTuple):
    """Entry of modules.json."""

    kind: str
    folder: str
    """relative path; "" is the encoder's folder itself"""


def is_static(modules: Sequence[ModuleEntry]) -> bool:
    """Return whether the vectors come from a table of tokens, without a transformer."""
    return bool(modules) and modules[0].kind == STATIC_EMBEDDING


def after_pooling(modules: Sequence[ModuleEntry]) -> Sequence[ModuleEntry]:
    """Return the modules after those that make the pooled vectors."""
    return modules[len(_POOLED_TABLE if is_static(modules) else _POOLED_STATES) :]


def read_json(file: Path, required: bool = False) -> dict[str, Any]:
    """Read the mapping in a JSON file of a model folder; {} if there is no file and none is required.

    Raises:
        ModelError: the file is missing or damaged, or a value has a wrong type.
    """
    try:
        text = file.read_text(encoding="utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except FileNotFoundError:
        if not required:
            return {}
        other_files = ", ".join(sorted(entry.name for entry in file.parent.glob("*"))[:8])
        raise ModelError(
            str(file),
            "a model's configuration",
            f"no such file; the folder has {other_files or 'no files, or does not exist'}",
            "give a Hugging Face or sentence-transformers folder",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            str(file), "readable JSON", " ".join(str(error).split()), "restore the file"
        ) from None
    if not isinstance(value, dict):
        raise ModelError(str(file), "a JSON object", type(value).__name__, "restore the file")
    check_values(file, value)
    return value


def write_json(file: Path, value: object) -> None:
    """Write a value as indented JSON; create the file's folder."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _finite(digits: str) -> float:
    """Read a JSON number. Raises ValueError if it is too large, which Python would read as infinity."""
    if math.isfinite(number := float(digits)):
        return number
    raise ValueError(f"{digits[:60]} is not a finite number")


def check_inside(file: Path, names: Iterable[Any]) -> None:
    """Check that names in `file` do not lead out of the model folder.

    Named files are read, and copied into releases.

    Raises:
        ModelError: a name is not a relative path without "..".
    """
    for name in names:
        is_plain = isinstance(name, str) and not {"\\", "\0"} & set(name)
        if not is_plain or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ModelError(str(file), "names of files in the folder", repr(name), "restore the file")


def modules_of(path: Path) -> list[ModuleEntry]:
    """List the modules of an encoder's folder in order, without Dropout, which changes no vector.

    Returns [] for a plain Hugging Face folder.

    Raises:
        ModelError: modules.json is damaged, or names modules that are not supported.
    """
    file = path / "modules.json"
    if not file.is_file():
        return []
    with refuse_invalid(file, "a list of modules with type and path"):
        entries = [
            (str(entry["type"]), str(entry["path"])) for entry in json.loads(file.read_text(encoding="utf-8"))
        ]
    check_inside(file, (folder for _, folder in entries))
    modules = [
        ModuleEntry(_kind(file, class_name), "" if folder in (".", "./") else folder)
        for class_name, folder in entries
    ]
    modules = [module for module in modules if module.kind != "Dropout"]
    later = after_pooling(modules)
    first = tuple(module.kind for module in modules[: len(modules) - len(later)])
    misplaced = {*_POOLED_STATES, *_POOLED_TABLE} & {module.kind for module in later}
    if first not in (_POOLED_STATES, _POOLED_TABLE) or misplaced:
        raise ModelError(
            str(file),
            f"Transformer and Pooling, or {STATIC_EMBEDDING}, then Dense and Normalize modules",
            ", ".join(module.kind for module in modules) or "no module",
            "use an encoder of these modules",
        )
    return modules


def _kind(file: Path, class_name: str) -> str:
    """Return the kind of a module by its type in modules.json, the name of its class."""
    if class_name in _OWN_KINDS:
        return _OWN_KINDS[class_name]
    kind = class_name.rpartition(".")[2]
    if kind in _KINDS and class_name.startswith("sentence_transformers."):
        return kind
    raise ModelError(
        str(file),
        f"modules among {', '.join(_KINDS)}",
        f"the module {class_name}",
        "use an encoder made of these modules",
    )


def pooling_of(
    path: Path, modules: list[ModuleEntry], config: Mapping[str, Any]
) -> tuple[tuple[str, ...], bool]:
    """Read the names of the poolings and whether prompt tokens are pooled.

    A folder without modules has the pooling that sentence-transformers chooses by config.json: last for a
    causal language model, else mean.

    Raises:
        ModelError: the configuration is damaged, or names an unknown pooling.
    """
    if not modules:
        architecture = (config.get("architectures") or [""])[0]
        is_causal = architecture.endswith("ForCausalLM") and config.get("is_causal", True)
        return ("last" if is_causal else "mean",), True
    file = path / modules[1].folder / "config.json"
    pooling_config = read_json(file, required=True)
    if (modes := pooling_config.get("pooling_mode")) is not None:
        names = [modes] if isinstance(modes, str) else modes
        # a trained encoder's folder has this project's name for a pooling unknown to sentence-transformers
        known = [*ST_NAMES, *(pooling.name for pooling in POOLINGS.values() if not pooling.st_name)]
        if unknown := [name for name in names if name not in known]:
            raise ModelError(
                str(file),
                f"pooling_mode among {', '.join(ST_NAMES)}",
                repr(unknown[0]),
                "use an encoder with one of these",
            )
        pooling = tuple(ST_NAMES.get(name, name) for name in names)
    else:
        pooling = tuple(name for flag, name in ST_FLAGS.items() if pooling_config.get(flag)) or ("mean",)
    return pooling, bool(pooling_config.get("include_prompt", True))


@contextmanager
def refuse_invalid(file: Path, expected: str) -> Iterator[None]:
    """Raise ModelError if the block raises because a key is missing or a value has a wrong type."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            str(file), expected, f"{type(error).__name__}: {error}", "restore the file"
        ) from None
