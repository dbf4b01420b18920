"""Heads of masked language models: from the last hidden state of a token to logits of all words."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.layers.linear import ACTIVATIONS
from pipeline.models.layers.weights import Checkpoint, open_checkpoint
from pipeline.models.trainable.encoder import TrainableEncoder

_STD = 0.02  # of new weights, as in BERT


@dataclass(frozen=True)
class _Names:
    """Names of the head's tensors in a family."""

    dense: str
    """prefix of the weight and the bias of the layer"""
    norm: str
    """prefix of the weight and the bias of its normalization"""
    bias: tuple[str, ...]
    """names that the bias of the vocabulary has had"""


_NAMES = (
    _Names(  # BERT
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    ),
    # RoBERTa, XLM-R, MPNet
    _Names("lm_head.dense", "lm_head.layer_norm", ("lm_head.bias", "lm_head.decoder.bias")),
    # DistilBERT
    _Names("vocab_transform", "vocab_layer_norm", ("vocab_projector.bias",)),
    # ELECTRA
    _Names("generator_predictions.dense", "generator_predictions.LayerNorm", ("generator_lm_head.bias",)),
    # ALBERT
    _Names("predictions.dense", "predictions.LayerNorm", ("predictions.bias", "predictions.decoder.bias")),
)


class LanguageHead(nn.Module):
    """logits = norm(activation(W h + b)) words^T + bias (Devlin et al. 2019).

    `words` is the encoder's table of word embeddings (tied weights, Press & Wolf 2017).
    """

    def __init__(self, width: int, table_shape: Sequence[int], epsilon: float, activation: str) -> None:
        """Draw new weights.

        Args:
            width: values of a hidden state.
            table_shape: shape of the word table, (vocabulary, inner).
            epsilon: epsilon of the normalization.
            activation: key of ACTIVATIONS.
        """
        super().__init__()
        vocabulary, inner = table_shape
        self.dense, self.norm = nn.Linear(width, inner), nn.LayerNorm(inner, epsilon)
        self.bias = nn.Parameter(self.dense.bias.new_zeros(vocabulary))
        self.activation = activation  # a name, which can be pickled
        nn.init.normal_(self.dense.weight, std=_STD)
        nn.init.zeros_(self.dense.bias)

    def transform(self, states: Tensor) -> Tensor:
        """Return (m, inner) vectors, whose dot products with the words are logits, for states (m, width)."""
        return self.norm(ACTIVATIONS[self.activation](self.dense(states)))

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """Return (m, vocabulary) logits for states (m, width) and the word table (vocabulary, inner)."""
        return F.linear(self.transform(states), words, self.bias)


def load_language_head(encoder: TrainableEncoder) -> LanguageHead:
    """Load the head among the weights of the encoder's folder, or draw a new one from torch's generator.

    The head is on the encoder's device.

    Raises:
        ModelError: a part of the head is missing, or its sizes are not those of the encoder.
    """
    config, weights = encoder.folder.config, open_checkpoint(encoder.folder)
    word_table = encoder.backbone.word_table
    names = _names_in(weights)
    activation = str(config.get("activation") or config.get("hidden_act") or "gelu")
    head = LanguageHead(
        encoder.backbone.width,
        word_table.shape,
        float(config.get("layer_norm_eps") or 1e-12),
        activation if activation in ACTIVATIONS else "gelu",
    )
    if names is not None:
        head.load_state_dict(_read_head(weights, names, head))
    return head.to(word_table.device)


def has_language_head(encoder: TrainableEncoder) -> bool:
    """Return True if the weights of the encoder's folder contain a head, or a part of one."""
    return _names_in(open_checkpoint(encoder.folder)) is not None


def _names_in(weights: Checkpoint) -> _Names | None:
    """Return the family's names under which the weights contain a head, or a part of one."""
    for names in _NAMES:
        layers = [f"{name}.{part}" for name in (names.dense, names.norm) for part in ("weight", "bias")]
        if any(name in weights for name in (*layers, *names.bias)):
            return names
    return None


def _read_head(weights: Checkpoint, names: _Names, head: LanguageHead) -> dict[str, Tensor]:
    """Read the tensors of the head, by the names of its parameters."""
    stored = {"bias": next((name for name in names.bias if name in weights), names.bias[0])}
    for module, name in (("dense", names.dense), ("norm", names.norm)):
        for part in ("weight", "bias"):
            stored[f"{module}.{part}"] = f"{name}.{part}"
    weights.check_present(stored.values())
    return {
        parameter: weights.tensor(name, tuple(head.get_parameter(parameter).shape))
        for parameter, name in stored.items()
    }
