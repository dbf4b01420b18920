"""Load a model of transformers, and run its forward pass over padded texts."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.pretrained import load_complete, load_config
from pipeline.models.spec.pooling import TABLE_STATE

_ENCODER_ONLY = ("t5", "mt5", "umt5")  # sentence encoders of these types are stored without their decoder


def encoder_of(model: Any) -> Any:
    """Return the encoder of a transformers model that may have a decoder, too."""
    return model.get_encoder() if model.config.is_encoder_decoder else model


class ModuleState:
    """Attributes of a model's modules before a forward pass; `restore` sets them again after it.

    Otherwise vectors of later texts would depend on the changes that a pass makes: BigBird changes to full
    attention at the first short text, and dynamic rotary positions are computed for the longest text so far.
    Hooks, which transformers adds at the first pass that returns inner states, stay.
    """

    def __init__(self, model: Any) -> None:
        # a module's attributes, buffers and inner modules: the live mapping, and a copy of it
        self._saved = [
            tuple((now, dict(now)) for now in (vars(module), module._buffers, module._modules))
            for module in model.modules()
        ]

    def restore(self) -> None:
        """Undo all changes."""
        for (now, attributes), *inner in self._saved:
            if len(now) > len(attributes):
                for name in [name for name in now if name not in attributes and "hook" not in name]:
                    del now[name]
            now.update(attributes)
            for values, earlier in inner:
                if values or earlier:
                    values.clear()
                    values.update(earlier)


def padding_id(config: Any) -> int:
    """Return the id to pad with: the model's own, or 0 if it has none with a row in the word table.

    Attention leaves padding out, so that any row will do.
    """
    pad, rows = getattr(config, "pad_token_id", None), getattr(config, "vocab_size", None)
    return int(pad) if pad is not None and 0 <= pad < (rows or pad + 1) else 0


def hidden_states(
    encoder: Any, layers: int, inputs: dict[str, Tensor], wanted: set[int], state: ModuleState | None
) -> dict[int, Tensor]:
    """Run a transformers encoder.

    Args:
        encoder: model of transformers.
        layers: number of its layers.
        inputs: arguments of its call, (rows, L) each.
        wanted: numbers of hidden states, as `layers_of` gives them.
        state: state of the encoder before any pass, restored after this pass; None: the pass may change the
        encoder.

    Returns:
        Hidden states (rows * L, d) by number.
    """
    states: dict[int, Tensor] = {}
    # from the table itself, because some models scale its rows before the first layer
    if TABLE_STATE in wanted:
        states[TABLE_STATE] = F.embedding(inputs["input_ids"], encoder.get_input_embeddings().weight)
    if wanted - {TABLE_STATE}:
        needs_inner = bool(wanted - {TABLE_STATE, layers})
        try:
            output = encoder(**inputs, output_hidden_states=needs_inner, return_dict=True)
        finally:
            if state is not None:
                state.restore()
        states |= dict(enumerate(output.hidden_states or ())) | {layers: output.last_hidden_state}
    return {number: states[number].flatten(0, 1) for number in wanted}


def load_model(folder: EncoderFolder, dtype: torch.dtype, dropout: float | None = None) -> Any:
    """Load the transformers model of a folder.

    Args:
        folder: the encoder's folder.
        dtype: type of the weights.
        dropout: rate of all dropout layers; None: the rates of config.json.

    Raises:
        ModelError: transformers cannot load it, or weights are missing.
    """
    import transformers

    path = folder.path / folder.transformer
    config = load_config(path)
    config.return_dict = True  # T5 takes the form of its output from here alone
    for name, value in config.to_dict().items():
        if dropout is not None and isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, dropout)
    return load_complete(
        transformers.AutoModelForTextEncoding
        if config.model_type in _ENCODER_ONLY
        else transformers.AutoModel,
        path,
        "a model that transformers loads",
        unused=("pooler.",),
        config=config,
        dtype=dtype,
    )
