"""Dropout rates of the packed families, where transformers has dropout."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from pipeline.models.folder.encoder_folder import EncoderFolder


@dataclass(frozen=True)
class Rates:
    """Dropout rates."""

    embedding: float = 0.0
    """after the normalization of the embeddings"""
    attention: float = 0.0
    """of the attention probabilities"""
    output: float = 0.0
    """of the attention's output, before the residual sum"""
    feed_forward: float = 0.0
    """of the feed-forward layer's output, before the residual sum"""
    inner: float = 0.0
    """of the inner states of the feed-forward layer"""


@dataclass(frozen=True)
class _Keys:
    """Keys of config.json for each rate; None: the family has no dropout there."""

    embedding: str | None = None
    attention: str | None = None
    output: str | None = None
    inner: str | None = None
    feed_forward: str | None = None
    hidden_default: float = 0.0
    """rate of all places but the attention probabilities, if config.json has none"""
    attention_default: float = 0.0


_HIDDEN, _ATTENTION = "hidden_dropout_prob", "attention_probs_dropout_prob"
_BERT = _Keys(_HIDDEN, _ATTENTION, _HIDDEN, None, _HIDDEN, hidden_default=0.1, attention_default=0.1)
_DECODER = _Keys(attention="attention_dropout")
_KEYS: Mapping[str, _Keys] = {
    "bert": _BERT,
    "roberta": _BERT,
    "mpnet": _BERT,
    "distilbert": _Keys(
        "dropout", "attention_dropout", None, None, "dropout", hidden_default=0.1, attention_default=0.1
    ),
    "modernbert": _Keys("embedding_dropout", "attention_dropout", "attention_dropout", "mlp_dropout"),
    "nomic_bert": _Keys(_HIDDEN, _ATTENTION, _HIDDEN, None, _HIDDEN),
    "gte": _Keys(_HIDDEN, _ATTENTION, _HIDDEN, _HIDDEN, _HIDDEN, hidden_default=0.1),
    "llama": _DECODER,
    "mistral": _DECODER,
    "qwen2": _DECODER,
    "qwen3": _DECODER,
    "gemma3": _DECODER,
}
"""by family"""


def rates_of(folder: EncoderFolder, dropout: float | None) -> Rates:
    """Return config.json's dropout rates; `dropout`, if given, overrides each of them."""
    keys = _KEYS[folder.family]

    def rate(place: str) -> float:
        key = getattr(keys, place)
        if key is None or dropout is not None:
            return 0.0 if key is None or dropout is None else dropout
        given = folder.config.get(key)
        default = keys.attention_default if place == "attention" else keys.hidden_default
        return default if given is None else float(given)

    return Rates(**{field.name: rate(field.name) for field in fields(Rates)})
