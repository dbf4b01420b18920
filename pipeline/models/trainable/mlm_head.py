"""What makes a masked language model of an encoder: the layers that tell from a token's last state which word
stood there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.layers.linear import ACTIVATIONS
from pipeline.models.layers.weights import Checkpoint, open_checkpoint
from pipeline.models.trainable.encoder import TrainableEncoder

_STD = 0.02  # of new weights, as BERT's own


@dataclass(frozen=True)
class _Names:
    """Where a family keeps the layer and the norm (".weight" and ".bias" follow), and the bias of the words."""

    dense: str
    norm: str
    bias: tuple[str, ...]


_NAMES = (
    _Names(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    ),  # BERT
    _Names(
        "lm_head.dense", "lm_head.layer_norm", ("lm_head.bias", "lm_head.decoder.bias")
    ),  # RoBERTa, XLM-R, MPNet
    _Names("vocab_transform", "vocab_layer_norm", ("vocab_projector.bias",)),  # DistilBERT
    _Names(
        "generator_predictions.dense", "generator_predictions.LayerNorm", ("generator_lm_head.bias",)
    ),  # ELECTRA
    _Names(
        "predictions.dense", "predictions.LayerNorm", ("predictions.bias", "predictions.decoder.bias")
    ),  # ALBERT
)


class LanguageHead(nn.Module):
    """logits = norm(activation(W h + b)) words^T + bias; the word table is the encoder's own (Devlin et al.
    2019; tied after Press & Wolf 2017).
    """

    def __init__(self, width: int, words: Sequence[int], epsilon: float, activation: str) -> None:
        super().__init__()
        vocabulary, inner = words
        self.dense, self.norm = nn.Linear(width, inner), nn.LayerNorm(inner, epsilon)
        self.bias = nn.Parameter(self.dense.bias.new_zeros(vocabulary))
        self.activation = activation  # by name: so it pickles
        nn.init.normal_(self.dense.weight, std=_STD)
        nn.init.zeros_(self.dense.bias)

    def transform(self, states: Tensor) -> Tensor:
        """(m, inner) for states (m, width): what is compared with the words."""
        return self.norm(ACTIVATIONS[self.activation](self.dense(states)))

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """(m, vocabulary) logits for states (m, width) and the word table (vocabulary, inner)."""
        return F.linear(self.transform(states), words, self.bias)


def load_language_head(encoder: TrainableEncoder) -> LanguageHead:
    """The head that the encoder's folder has beside the backbone, or a new one from torch's generator if it
    has no part of one; on the encoder's device.

    Raises:
        ModelError: the folder's head lacks a part, or has other sizes than the encoder.
    """
    config, words, weights = encoder.folder.config, encoder.backbone.words, open_checkpoint(encoder.folder)
    names = _names_in(weights)
    activation = str(config.get("activation") or config.get("hidden_act") or "gelu")
    epsilon = float(config.get("layer_norm_eps") or 1e-12)
    head = LanguageHead(
        encoder.backbone.width, words.shape, epsilon, activation if activation in ACTIVATIONS else "gelu"
    )
    if names is not None:
        head.load_state_dict(_read(weights, names, head))
    return head.to(words.device)


def has_language_head(encoder: TrainableEncoder) -> bool:
    """Whether the folder has the layers in front of the words, or a part of them, among its weights."""
    return _names_in(open_checkpoint(encoder.folder)) is not None


def _names_in(weights: Checkpoint) -> _Names | None:
    """The names by which the weights hold a head, or a part of one."""
    for names in _NAMES:
        layers = [f"{name}.{part}" for name in (names.dense, names.norm) for part in ("weight", "bias")]
        if any(name in weights for name in (*layers, *names.bias)):
            return names
    return None


def _read(weights: Checkpoint, names: _Names, head: LanguageHead) -> dict[str, Tensor]:
    bias = next((name for name in names.bias if name in weights), names.bias[0])
    where = {"bias": bias} | {
        f"{own}.{part}": f"{name}.{part}"
        for own, name in (("dense", names.dense), ("norm", names.norm))
        for part in ("weight", "bias")
    }
    weights.check_present(where.values())
    return {own: weights.tensor(name, tuple(head.get_parameter(own).shape)) for own, name in where.items()}
