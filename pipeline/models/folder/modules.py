"""Modules of an encoder folder, as sentence-transformers writes them: the pooling, and layers after it.

Imports neither torch nor transformers.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.folder.values import check_values
from pipeline.models.layers.pooling import POOLINGS, ST_FLAGS, ST_NAMES

OWN_MODULES = "template_modules"  # Python file with modules of ours in a folder
_OWN = {f"{OWN_MODULES}.MaskPooling": "Pooling", f"{OWN_MODULES}.Denoise": "Denoising"}
_KINDS = ("Dense", "Normalize", "Pooling", "Transformer")  # of sentence-transformers
_SIZES = (
    *("hidden_size", "dim", "num_hidden_layers", "n_layers", "num_attention_heads", "n_heads"),
    *("intermediate_size", "hidden_dim", "vocab_size", "max_position_embeddings"),
)


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
    """Subtraction of the vector of a bare template, by the text's length (Jiang et al. 2022, section 4.3).

    A module of ours: in sentence-transformers, no vector depends on a length.
    """

    weights: str
    """path in the folder"""
    width: int
    activation: str | None
    """of a layer that both vectors go through first; None: there is none"""
    epsilon: float
    """of that layer's normalization"""
    shortest: int
    """tokens of an empty text in its template"""


@dataclass(frozen=True)
class Cut:
    """Keep the first `width` components, without normalizing again.

    truncate_dim of sentence-transformers; Matryoshka (Kusupati et al. 2022).
    """

    width: int


Module = Dense | Denoising | Cut | str
"""a module after the pooling; the only string is "normalize" """


def read_json(file: Path, required: bool = False) -> dict[str, Any]:
    """Read the mapping in a JSON file of a model folder; {} if there is no file and none is required.

    Raises:
        ModelError: the file is missing or damaged, or a value has another type than its readers rely on.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        if not required:
            return {}
        beside = ", ".join(sorted(entry.name for entry in file.parent.glob("*"))[:8])
        raise ModelError(
            str(file),
            "a model's configuration",
            f"no such file beside {beside or 'an empty or missing folder'}",
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


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def check_numbers(file: Path, config: dict[str, Any]) -> None:
    """Check that the sizes of a model of a packed family are possible.

    Raises:
        ModelError: a size is not a positive number, or the padding token is not in the vocabulary.
    """
    for name in _SIZES:
        if name in config and (type(config[name]) is not int or not 1 <= config[name] < 2**31):
            raise ModelError(
                str(file), f"{name} as a number from 1 on", repr(config[name]), "restore the file"
            )
    pad, words = config.get("pad_token_id"), config.get("vocab_size", 2**31)
    if pad is not None and (type(pad) is not int or not 0 <= pad < words):
        raise ModelError(
            str(file), f"pad_token_id as a number from 0 to {words - 1}", repr(pad), "restore the file"
        )


def check_inside(file: Path, names: Iterable[Any]) -> None:
    """Check that names in `file` do not lead out of the model folder.

    Named files are read, and copied into releases.

    Raises:
        ModelError: a name is not a relative path without "..".
    """
    for name in names:
        inside = isinstance(name, str) and not {"\\", "\0"} & set(name)
        if not inside or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ModelError(str(file), "names of files in the folder", repr(name), "restore the file")


def modules_of(path: Path) -> list[tuple[str, str]]:
    """List (kind, folder) of each module in order; [] for a plain Hugging Face folder.

    Raises:
        ModelError: modules.json is damaged, or names modules that are not supported.
    """
    file = path / "modules.json"
    if not file.is_file():
        return []
    with _complete(file, "a list of modules with type and path"):
        named = [
            (str(entry["type"]), str(entry["path"])) for entry in json.loads(file.read_text(encoding="utf-8"))
        ]
    check_inside(file, (folder for _, folder in named))
    modules = [(_OWN.get(name, name.rpartition(".")[2]), folder) for name, folder in named]
    for (name, _), (kind, _) in zip(named, modules, strict=True):
        if name not in _OWN and not (kind in _KINDS and name.startswith("sentence_transformers.")):
            raise ModelError(
                str(file),
                f"modules among {', '.join(_KINDS)}",
                f"the module {name}",
                "use an encoder made of these modules",
            )
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & set(kinds[2:]):
        raise ModelError(
            str(file),
            "Transformer, Pooling, then Dense and Normalize modules",
            ", ".join(kinds) or "no module",
            "use such an encoder",
        )
    return modules


def pooling_of(path: Path, modules: list[tuple[str, str]]) -> tuple[tuple[str, ...], bool]:
    """Read the names of the poolings and whether prompt tokens are pooled; mean for a plain folder.

    Raises:
        ModelError: the configuration is damaged, or names an unknown pooling.
    """
    if not modules:
        return ("mean",), True
    file = path / modules[1][1] / "config.json"
    config = read_json(file, required=True)
    if (modes := config.get("pooling_mode")) is not None:
        names = [modes] if isinstance(modes, str) else modes
        # a trained encoder's folder has our name of a pooling that sentence-transformers does not know
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
        pooling = tuple(name for flag, name in ST_FLAGS.items() if config.get(flag)) or ("mean",)
    return pooling, bool(config.get("include_prompt", True))


def tail_of(path: Path, modules: list[tuple[str, str]], normalize: bool | None) -> list[Module]:
    """Read the modules after the pooling, in order.

    Args:
        path: the folder.
        modules: from `modules_of`.
        normalize: False leaves out the folder's Normalize modules, True adds one at the end if there is none.

    Raises:
        ModelError: the configuration of a module is damaged or not supported.
    """
    read: dict[str, Callable[[Path, str], Module]] = {"Dense": _dense, "Denoising": _denoise}
    tail: list[Module] = [
        read[kind](path, folder) if kind in read else "normalize" for kind, folder in modules[2:]
    ]
    if normalize is False:
        tail = [module for module in tail if module != "normalize"]
    file = path / "config_sentence_transformers.json"
    width = read_json(file).get("truncate_dim")
    if width is not None and (type(width) is not int or width < 1):
        raise ModelError(
            str(file),
            "truncate_dim as a number of dimensions, 1 or more",
            repr(width),
            "correct it, or remove that line",
        )
    if width is not None:
        tail.append(Cut(width))
    if normalize and tail[-1:] != ["normalize"]:
        tail.append("normalize")
    return tail


def _dense(path: Path, folder: str) -> Dense:
    file = path / folder / "config.json"
    config = read_json(file, required=True)
    names = [name for name in ("model.safetensors", "pytorch_model.bin") if (path / folder / name).is_file()]
    if not names:
        raise ModelError(
            str(file.parent),
            "weights in model.safetensors or pytorch_model.bin",
            "neither",
            "restore the file",
        )
    for key in ("module_input_name", "module_output_name"):
        if config.get(key, "sentence_embedding") not in ("sentence_embedding", None):
            raise ModelError(
                str(file),
                f"{key} sentence_embedding",
                repr(config[key]),
                "use an encoder whose Dense works on the sentence embedding",
            )
    with _complete(file, "in_features and out_features"):
        dense = Dense(
            f"{folder}/{names[0]}",
            int(config["in_features"]),
            int(config["out_features"]),
            bool(config.get("bias", True)),
            str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2],
            bool(config.get("use_residual", False)),
        )
    return dense


def _denoise(path: Path, folder: str) -> Denoising:
    file = path / folder / "config.json"
    config = read_json(file, required=True)
    with _complete(file, "width, activation, epsilon and shortest"):
        denoising = Denoising(
            f"{folder}/model.safetensors",
            int(config["width"]),
            config["activation"],
            float(config["epsilon"]),
            int(config["shortest"]),
        )
    return denoising


@contextmanager
def _complete(file: Path, expected: str) -> Iterator[None]:
    """Raise ModelError if the block misses a key or a value has another type."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            str(file), expected, f"{type(error).__name__}: {error}", "restore the file"
        ) from None
