"""Heads of masked language models: from the last hidden state of a token to logits of all words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.linear import ACTIVATIONS, TrainableLinear, trainable_linear
from pipeline.models.layers.weights import Checkpoint, open_checkpoint
from pipeline.models.trainable.encoder import TrainableEncoder

_STD = 0.02  # standard deviation of new weights, as in BERT


@dataclass(frozen=True)
class _Names:
    """Names of the head's tensors in a kind of model."""

    dense: str
    """prefix of the weight and the bias of the layer"""
    norm: str
    """prefix of the weight and the bias of its normalization"""
    bias: tuple[str, ...]
    """names of the bias of the vocabulary; without tied weights transformers reads the last one"""
    table: str
    """name of the output table"""


_ROBERTA = _Names(
    "lm_head.dense", "lm_head.layer_norm", ("lm_head.bias", "lm_head.decoder.bias"), "lm_head.decoder.weight"
)
_NAMES: Mapping[str, _Names] = {
    "bert": _Names(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        ("cls.predictions.bias", "cls.predictions.decoder.bias"),
        "cls.predictions.decoder.weight",
    ),
    "roberta": _ROBERTA,  # and XLM-R
    "mpnet": _ROBERTA,
    "distilbert": _Names(
        "vocab_transform", "vocab_layer_norm", ("vocab_projector.bias",), "vocab_projector.weight"
    ),
    "electra": _Names(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        ("generator_lm_head.bias",),
        "generator_lm_head.weight",
    ),
    "albert": _Names(
        "predictions.dense",
        "predictions.LayerNorm",
        ("predictions.bias", "predictions.decoder.bias"),
        "predictions.decoder.weight",
    ),
}
"""Names by family, or by model_type for models that have no family here.

Each key, with a dot, is also the prefix of the encoder's tensors in a checkpoint that has a head.
"""


class LanguageHead(nn.Module):
    """logits = norm(activation(W h + b)) words^T + bias (Devlin et al. 2019).

    `words` is the encoder's table of word embeddings (tied weights, Press & Wolf 2017), or an output table of
    the head's own, `table`, if it is not None.
    """

    table: nn.Parameter | None

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
        self.dense, self.norm = TrainableLinear(width, inner), nn.LayerNorm(inner, epsilon)
        self.bias = nn.Parameter(self.dense.bias.new_zeros(vocabulary))
        self.register_parameter("table", None)
        self.activation = activation  # a name, which can be pickled
        nn.init.normal_(self.dense.weight, std=_STD)
        nn.init.zeros_(self.dense.bias)

    def transform(self, states: Tensor) -> Tensor:
        """Return (m, inner) vectors, whose dot products with the words are logits, for states (m, width)."""
        return self.norm(ACTIVATIONS[self.activation](self.dense(states)))

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """Return (m, vocabulary) logits for states (m, width) and the encoder's words (vocabulary, inner)."""
        table = words if self.table is None else self.table
        return trainable_linear(self.transform(states), table, self.bias)


def load_language_head(encoder: TrainableEncoder, *, tied: bool = True) -> LanguageHead:
    """Load the head among the weights of the encoder's folder, or draw a new one from torch's generator.

    The head is on the encoder's device.

    Args:
        encoder: encoder whose states the head reads.
        tied: False gives the head an output table of its own, which starts as the folder's or, if the folder
        has none, as a copy of the encoder's word embeddings.

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
    if not tied:
        table = word_table.detach()
        if names is not None and names.table in weights:
            table = weights.tensor(names.table, tuple(word_table.shape))
        head.table = nn.Parameter(table.clone())
    return head.to(word_table.device)


def has_language_head(encoder: TrainableEncoder) -> bool:
    """Return True if the weights of the encoder's folder contain a head, or a part of one."""
    return _names_in(open_checkpoint(encoder.folder)) is not None


def can_be_saved(folder: EncoderFolder) -> bool:
    """Return True if the names of a head's tensors are known for the folder's kind of model."""
    return _kind(folder) in _NAMES


def with_language_head(
    encoder: Mapping[str, Tensor], head: LanguageHead, folder: EncoderFolder
) -> dict[str, Tensor]:
    """Return the tensors of a masked language model, as transformers' AutoModelForMaskedLM names them.

    Args:
        encoder: tensors of the encoder, by names without prefix.
        head: the head to add. If it is tied, there is no output table.
        folder: folder of the encoder's kind; see `can_be_saved`.
    """
    kind = _kind(folder)
    names = _NAMES[kind]
    tensors = {f"{kind}.{name}": tensor for name, tensor in encoder.items()}
    for layer, name in ((head.dense, names.dense), (head.norm, names.norm)):
        tensors |= {f"{name}.{part}": value for part, value in layer.named_parameters()}
    tensors |= dict.fromkeys(names.bias, head.bias)
    return tensors if head.table is None else tensors | {names.table: head.table}


def _kind(folder: EncoderFolder) -> str:
    """Return the family, or the model_type if the model has no family here."""
    return str(folder.config.get("model_type")) if folder.family == "other" else folder.family


def _names_in(weights: Checkpoint) -> _Names | None:
    """Return the names under which the weights contain a head, or a part of one; None if there is none."""
    for names in _NAMES.values():
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
