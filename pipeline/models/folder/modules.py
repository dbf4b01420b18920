"""The modules that an encoder folder names, as sentence-transformers writes them: pooling, and the layers
behind it. Imports neither torch nor transformers.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.folder.values import check_values
from pipeline.models.layers.pooling import POOLINGS, ST_FLAGS, ST_NAMES

OWN_MODULES = "template_modules"  # the file of modules of ours in a folder
_OWN = {f"{OWN_MODULES}.MaskPooling": "Pooling", f"{OWN_MODULES}.Denoise": "Denoising"}
_SIZES = (
    *("hidden_size", "dim", "num_hidden_layers", "n_layers", "num_attention_heads", "n_heads"),
    *("intermediate_size", "hidden_dim", "vocab_size", "max_position_embeddings"),
)
_CONFIG_VALUES: tuple[tuple[tuple[str, ...], tuple[type, ...], str], ...] = (
    (
        ("hidden_size", "dim", "d_model", "num_hidden_layers", "n_layers", "num_layers", "num_attention_heads", "n_heads", "num_heads", "intermediate_size",
         "hidden_dim", "d_ff", "d_kv", "embedding_size", "max_position_embeddings", "n_positions", "vocab_size", "type_vocab_size", "pad_token_id",
         "relative_attention_num_buckets"),
        (int,), "a whole number",
    ),
    (("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rope_theta", "attention_probs_dropout_prob", "hidden_dropout_prob"), (int, float), "a number"),
    (("hidden_act", "activation", "position_embedding_type"), (str,), "a name"),
)  # fmt: skip
"""(keys of a config.json, their types, in words)"""


@dataclass(frozen=True)
class Dense:
    """A linear layer with activation after the pooling. weights: path in the folder."""

    weights: str
    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool


@dataclass(frozen=True)
class Denoising:
    """Takes off what a template without any text gives at its mask, by the text's length; both go through a
    layer first, where there is one. weights: path in the folder.

    PromptBERT (Jiang et al. 2022), section 4.3. A module of our own: sentence-transformers has no vectors
    that depend on lengths.
    """

    weights: str
    width: int
    activation: str | None
    """of the layer; None: there is none"""
    epsilon: float
    """of the layer's normalisation"""
    shortest: int
    """tokens of an empty text in its template"""


@dataclass(frozen=True)
class Cut:
    """Keep the first `width` components (truncate_dim of sentence-transformers; Matryoshka, Kusupati et al.
    2022), without normalising again.
    """

    width: int


Module = Dense | Denoising | Cut | str


def read_json(file: Path, required: bool = False) -> dict[str, Any]:
    """The mapping in a JSON file of a model folder; {} if there is no file and none is required.

    Raises:
        ModelError: the file is missing or damaged, or a value in it is of another type than its readers
        expect.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        if not required:
            return {}
        found = (
            ", ".join(sorted(entry.name for entry in file.parent.glob("*"))[:8])
            or "an empty or missing folder"
        )
        raise ModelError(
            str(file),
            "a model's configuration",
            f"no such file beside {found}",
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


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder. ModelError if it is missing or damaged, or if a value that every
    reader of it takes for granted is of another type.
    """
    file = folder / "config.json"
    config = read_json(file, required=True)
    for names, kinds, expected in _CONFIG_VALUES:
        for name in names:
            value = config.get(name)
            fits = isinstance(value, kinds) and not isinstance(value, bool)
            if (
                value is not None and not fits and not isinstance(value, list)
            ):  # some families have a value for each layer
                raise ModelError(str(file), f"{expected} as {name}", repr(value)[:60], "restore the file")
    return config


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def check_numbers(file: Path, config: dict[str, Any]) -> None:
    """Refuse a configuration of BERT's kind whose sizes are not numbers that a model can have."""
    sizes = {name: config[name] for name in _SIZES if name in config}
    if wrong := {
        name: value for name, value in sizes.items() if type(value) is not int or not 1 <= value < 2**31
    }:
        name, value = next(iter(wrong.items()))
        raise ModelError(str(file), f"{name} as a number from 1 on", repr(value), "restore the file")
    pad, words = config.get("pad_token_id"), sizes.get("vocab_size", 2**31)
    if pad is not None and (type(pad) is not int or not 0 <= pad < words):
        raise ModelError(
            str(file), f"pad_token_id as a number from 0 to {words - 1}", repr(pad), "restore the file"
        )


def check_inside(file: Path, names: Iterable[Any]) -> None:
    """Refuse names in `file` that lead out of the model folder: named files are read, and copied into
    releases.
    """
    for name in names:
        if (
            not isinstance(name, str)
            or PurePosixPath(name).is_absolute()
            or ".." in PurePosixPath(name).parts
            or "\\" in name
            or "\0" in name
        ):
            raise ModelError(str(file), "names of files in the folder", repr(name), "restore the file")


def modules_of(path: Path) -> list[tuple[str, str]]:
    """(kind, folder) of each module in order; none for a plain Hugging Face folder."""
    file = path / "modules.json"
    if not file.is_file():
        return []
    try:
        entries = [
            (str(entry["type"]), str(entry["path"])) for entry in json.loads(file.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            str(file),
            "a list of modules with type and path",
            f"{type(error).__name__}: {error}",
            "restore the file",
        ) from None
    check_inside(file, (folder for _, folder in entries))
    known = {"Transformer", "Pooling", "Dense", "Normalize"}
    for kind, _ in entries:
        if kind not in _OWN and (
            kind.rpartition(".")[2] not in known or not kind.startswith("sentence_transformers.")
        ):
            raise ModelError(
                str(file),
                f"modules among {', '.join(sorted(known))}",
                f"the module {kind}",
                "use an encoder made of these modules",
            )
    kinds = [(_OWN.get(kind, kind.rpartition(".")[2]), folder) for kind, folder in entries]
    if [kind for kind, _ in kinds[:2]] != ["Transformer", "Pooling"] or any(
        kind in ("Transformer", "Pooling") for kind, _ in kinds[2:]
    ):
        found = ", ".join(kind for kind, _ in kinds) or "no module"
        raise ModelError(
            str(file), "Transformer, Pooling, then Dense and Normalize modules", found, "use such an encoder"
        )
    return kinds


def pooling_of(path: Path, modules: list[tuple[str, str]]) -> tuple[tuple[str, ...], bool]:
    """Pooling names and whether prompt tokens take part; mean for a plain folder."""
    if not modules:
        return ("mean",), True
    file = path / modules[1][1] / "config.json"
    config = read_json(file, required=True)
    if (modes := config.get("pooling_mode")) is not None:
        names = [modes] if isinstance(modes, str) else list(modes)
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
    """The modules behind the pooling, in order. normalize: False drops the folder's Normalize modules, True
    puts one at the end.
    """
    read: dict[str, Callable[[Path, str], Module]] = {"Dense": _dense, "Denoising": _denoise}
    tail: list[Module] = [
        read[kind](path, folder) if kind in read else "normalize" for kind, folder in modules[2:]
    ]
    if normalize is False:
        tail = [module for module in tail if module != "normalize"]
    if (width := _truncate_dim(path)) is not None:
        tail.append(Cut(width))
    if normalize and tail[-1:] != ["normalize"]:
        tail.append("normalize")
    return tail


def _truncate_dim(path: Path) -> int | None:
    file = path / "config_sentence_transformers.json"
    width = read_json(file).get("truncate_dim")
    if width is not None and (type(width) is not int or width < 1):
        raise ModelError(
            str(file),
            "truncate_dim as a number of dimensions, 1 or more",
            repr(width),
            "correct it, or remove that line",
        )
    return width


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
    try:
        return Dense(
            f"{folder}/{names[0]}",
            int(config["in_features"]),
            int(config["out_features"]),
            bool(config.get("bias", True)),
            str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2],
            bool(config.get("use_residual", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            str(file), "in_features and out_features", f"{type(error).__name__}: {error}", "restore the file"
        ) from None


def _denoise(path: Path, folder: str) -> Denoising:
    file = path / folder / "config.json"
    config = read_json(file, required=True)
    try:
        return Denoising(
            f"{folder}/model.safetensors",
            int(config["width"]),
            config["activation"],
            float(config["epsilon"]),
            int(config["shortest"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            str(file),
            "width, activation, epsilon and shortest",
            f"{type(error).__name__}: {error}",
            "restore the file",
        ) from None
