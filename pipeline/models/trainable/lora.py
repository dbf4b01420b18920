"""Low-rank adapters in place of a backbone's own weights (LoRA: Hu et al. 2022), through peft; a saved
encoder has them added in.
"""

import copy
import difflib
import importlib.util
from typing import Any

from torch import nn

from pipeline.errors import ConfigError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.weights import NAMES
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.settings.training import TrainSettings
from pipeline.settings.weights import LoraSettings

_ADAPTER = "lora_A"  # peft's name for the first matrix of an adapter


def check_adapters(settings: TrainSettings) -> None:
    """ConfigError where adapters are asked for and the package is missing, or there are no weights worth to
    be adapted.
    """
    if settings.lora.rank is None:
        return
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(
            "train.lora.rank",
            "the package peft",
            "none",
            "pip install 'manta-embeddings[lora]', or leave train.lora out",
        )
    if settings.fresh or settings.recurrent.cell is not None:
        found, remedy = (
            "train.fresh" if settings.fresh else "train.recurrent",
            "leave one of them out: adapters alone cannot make up for random weights",
        )
        raise ConfigError("train.lora.rank", "trained weights to adapt", f"new ones ({found})", remedy)


def adapt(encoder: TrainableEncoder, settings: LoraSettings) -> None:
    """Put adapters on the encoder's linear layers that the settings name, and let its backbone's own weights
    be; heads train on. Nothing where `rank` is null.

    The vectors stay what they were: an adapter begins as zero. Its first matrix comes from torch's generator.
    ConfigError for names that no linear layer ends with.
    """
    if settings.rank is None:
        return
    from peft import LoraConfig, inject_adapter_in_model

    layers = _linear_layers(encoder.backbone)
    targets = settings.targets or _usual(encoder.folder, layers)
    chosen = [name for target in targets for name in _ending(target, layers)]
    alpha: Any = settings.alpha  # a fraction is as good
    config = LoraConfig(
        r=settings.rank, lora_alpha=alpha, lora_dropout=settings.dropout, target_modules=chosen
    )
    inject_adapter_in_model(config, encoder.backbone)


def is_adapted(encoder: nn.Module) -> bool:
    """Whether it has adapters."""
    return any(hasattr(module, _ADAPTER) for module in encoder.modules())


def merged(encoder: TrainableEncoder) -> TrainableEncoder:
    """An encoder of the same vectors without adapters: a copy, with each one's product added to the weights
    that it stands for. Without any, the encoder itself.
    """
    if not is_adapted(encoder):
        return encoder
    plain = copy.deepcopy(encoder)
    for name, module in [
        (name, module) for name, module in plain.named_modules() if hasattr(module, _ADAPTER)
    ]:
        layer: Any = module
        layer.merge()
        parent, _, last = name.rpartition(".")
        setattr(plain.get_submodule(parent), last, layer.get_base_layer())
    return plain


def _linear_layers(backbone: nn.Module) -> list[str]:
    """Names of those that are trained."""
    return [
        name
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad
    ]


def _usual(folder: EncoderFolder, layers: list[str]) -> tuple[str, ...]:
    """Ends of the names of query and value projections.

    ConfigError for an architecture in which nobody has named them.
    """
    if folder.family in NAMES:
        names = NAMES[folder.family]
        return names.query, names.value
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    kind = str(folder.config.get("model_type"))
    if kind not in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING:
        raise ConfigError(
            "train.lora.targets",
            "the layers to adapt",
            f"none named, and {kind} has no usual ones",
            f"name some of {_ends(layers)}",
        )
    return tuple(TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[kind])


def _ending(target: str, layers: list[str]) -> list[str]:
    found = [name for name in layers if name == target or name.endswith(f".{target}")]
    if not found:
        near = difflib.get_close_matches(target, {name.rpartition(".")[2] for name in layers}, n=1)
        raise ConfigError(
            "train.lora.targets",
            f"linear layers that end with {target}",
            "none",
            f"did you mean {near[0]}?" if near else f"name some of {_ends(layers)}",
        )
    return found


def _ends(layers: list[str]) -> str:
    """The different last two parts of names."""
    return (
        ", ".join(sorted({".".join(name.split(".")[-2:]) for name in layers}))
        or "none: the encoder has no linear layers"
    )
