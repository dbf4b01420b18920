"""Read the modules after the pooling of an encoder folder, and apply the settings that change them.

Imports neither torch nor transformers.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.folder.modules import (
    Denoising,
    Dense,
    Module,
    ModuleEntry,
    Normalization,
    Truncation,
    after_pooling,
    read_json,
    refuse_invalid,
)
from pipeline.settings import EncoderSettings


def tail_of(path: Path, modules: list[ModuleEntry], settings: EncoderSettings) -> list[Module]:
    """Read the modules after the pooling, in order, and apply `encoder.normalize` and `encoder.dim`.

    Args:
        path: the encoder's folder.
        modules: from `modules_of`.
        settings: settings of the encoder.

    Raises:
        ModelError: the configuration of a module is damaged or not supported.
    """
    readers: dict[str, Callable[[Path, str], Module]] = {
        "Dense": _read_dense,
        "Denoising": _read_denoising,
        "Normalize": _read_normalize,
    }
    tail: list[Module] = [readers[kind](path, folder) for kind, folder in after_pooling(modules)]
    if settings.normalize is False:
        tail = [module for module in tail if module != Normalization()]
    file = path / "config_sentence_transformers.json"
    width = read_json(file).get("truncate_dim")
    if width is not None:
        if type(width) is not int or width < 1:
            raise ModelError(
                str(file),
                "truncate_dim as a whole number, 1 or more",
                repr(width),
                "correct it, or remove that line",
            )
        tail.append(Truncation(width))
    return [*tail, *chosen_ending(tail, settings.normalize, settings.dim)]


def chosen_ending(tail: list[Module], normalize: bool | None, dim: int | None) -> list[Module]:
    """Return the modules that `encoder.normalize` and `encoder.dim` add at the end of `tail`.

    Truncated vectors are normalized unless `normalize` is False, even if the folder's vectors are not.
    """
    cut: list[Module] = [] if dim is None else [Truncation(dim)]
    wanted = bool(normalize) or (dim is not None and normalize is None)
    is_normalized = [*tail, *cut][-1:] == [Normalization()]
    return [*cut, Normalization()] if wanted and not is_normalized else cut


def _read_dense(path: Path, folder: str) -> Dense:
    """Read the configuration of a Dense module in a subfolder of the encoder."""
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
    _check_names(file, config)
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if activation.startswith("torch.nn."):  # other classes are code from outside of PyTorch
        activation = activation.rpartition(".")[2]
    with refuse_invalid(file, "in_features and out_features"):
        return Dense(
            weights=f"{folder}/{names[0]}",
            in_features=int(config["in_features"]),
            out_features=int(config["out_features"]),
            bias=bool(config.get("bias", True)),
            activation=activation,
            residual=bool(config.get("use_residual", False)),
        )


def _read_normalize(path: Path, folder: str) -> Normalization:
    """Read the configuration of a Normalize module, which older folders lack."""
    if folder:  # "" is the encoder's folder, whose config.json is the model's
        _check_names(path / folder / "config.json", read_json(path / folder / "config.json"))
    return Normalization()


def _check_names(file: Path, config: Mapping[str, Any]) -> None:
    """Check that a module works on the sentence embedding, not on token states."""
    for key in ("module_input_name", "module_output_name"):
        if config.get(key, "sentence_embedding") not in ("sentence_embedding", None):
            raise ModelError(
                str(file),
                f"{key} sentence_embedding",
                repr(config[key]),
                "use an encoder whose modules work on the sentence embedding",
            )


def _read_denoising(path: Path, folder: str) -> Denoising:
    """Read the configuration of a Denoise module, which this project writes."""
    file = path / folder / "config.json"
    config = read_json(file, required=True)
    with refuse_invalid(file, "width, activation, epsilon and shortest"):
        return Denoising(
            weights=f"{folder}/model.safetensors",
            width=int(config["width"]),
            activation=config["activation"],
            epsilon=float(config["epsilon"]),
            shortest=int(config["shortest"]),
        )
