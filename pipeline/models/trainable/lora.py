"""Low-rank adapters, trained instead of a backbone's weights, through peft (LoRA: Hu et al. 2022).

When an encoder is saved, its adapters are merged into the weights.
"""

import copy
import importlib.util
from typing import Any

from torch import nn

from pipeline.errors import ConfigError, did_you_mean
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.spec.tensor_names import NAMES
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.settings.training import TrainSettings
from pipeline.settings.weights import LoraSettings

_ADAPTER = "lora_A"  # peft's name for the first matrix of an adapter


def check_adapters(settings: TrainSettings) -> None:
    """Check that adapters can be trained, if the settings ask for them.

    Raises:
        ConfigError: peft is missing, or training starts from new weights.
    """
    if settings.lora.rank is None:
        return
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(
            "train.lora.rank",
            "the package peft",
            "none",
            "pip install 'manta-embeddings[lora]', or set train.lora.rank to null",
        )
    new = settings.new_encoder
    if settings.fresh or new is not None:
        raise ConfigError(
            "train.lora.rank",
            "trained weights to adapt",
            f"new ones ({'train.fresh' if settings.fresh or new is None else f'train.{new.kind}'})",
            "set one of the two only: adapters alone cannot make up for random weights",
        )


def adapt(encoder: TrainableEncoder, settings: LoraSettings) -> None:
    """Add adapters to linear layers of the backbone, and freeze its other weights; heads are still trained.

    An adapter starts as zero, so the vectors do not change; its first matrix is drawn from torch's generator.
    Without a `rank`, nothing changes.

    Raises:
        ConfigError: no linear layer has a name that ends with one of the targets.
    """
    if settings.rank is None:
        return
    from peft import LoraConfig, inject_adapter_in_model

    layers = [
        name
        for name, module in encoder.backbone.named_modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad
    ]
    targets = settings.targets or _query_and_value(encoder.folder, layers)
    chosen = [name for target in targets for name in _layers_ending_in(target, layers)]
    alpha: Any = settings.alpha  # peft declares an integer but computes with any number
    config = LoraConfig(
        r=settings.rank, lora_alpha=alpha, lora_dropout=settings.dropout, target_modules=chosen
    )
    inject_adapter_in_model(config, encoder.backbone)


def is_adapted(encoder: nn.Module) -> bool:
    """Return True if the encoder has adapters."""
    return any(hasattr(module, _ADAPTER) for module in encoder.modules())


def merge_adapters(encoder: TrainableEncoder) -> TrainableEncoder:
    """Return a copy of the encoder with adapters merged into its weights; without adapters, the encoder."""
    if not is_adapted(encoder):
        return encoder
    plain = copy.deepcopy(encoder)
    adapters: list[tuple[str, Any]] = [
        (name, module) for name, module in plain.named_modules() if hasattr(module, _ADAPTER)
    ]
    for name, adapter in adapters:
        adapter.merge()
        plain.set_submodule(name, adapter.get_base_layer())
    return plain


def _query_and_value(folder: EncoderFolder, layers: list[str]) -> tuple[str, ...]:
    """Return the name endings of the query and value projections, or of the one projection that also computes
    keys.

    Raises:
        ConfigError: they are not known for the architecture.
    """
    if folder.family in NAMES:
        inputs = NAMES[folder.family].attention.inputs
        return (inputs[0], inputs[-1]) if len(inputs) > 1 else inputs
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    model_type = str(folder.config.get("model_type"))
    if model_type not in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING:
        raise ConfigError(
            "train.lora.targets",
            "the layers to adapt",
            f"none, and there is no default for {model_type}",
            f"name some of {_name_endings(layers)}",
        )
    return tuple(TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[model_type])


def _layers_ending_in(target: str, layers: list[str]) -> list[str]:
    """Select the layers whose last name parts are `target`. Raises ConfigError if there are none."""
    found = [name for name in layers if name == target or name.endswith(f".{target}")]
    if not found:
        last_parts = {name.rpartition(".")[2] for name in layers}
        raise ConfigError(
            "train.lora.targets",
            f"linear layers that end with {target}",
            "none",
            did_you_mean(target, last_parts, f"name some of {_name_endings(layers)}"),
        )
    return found


def _name_endings(layers: list[str]) -> str:
    """List the last two parts of the names of layers, for a message."""
    endings = sorted({".".join(name.split(".")[-2:]) for name in layers})
    return ", ".join(endings) or "none: the encoder has no linear layers"
