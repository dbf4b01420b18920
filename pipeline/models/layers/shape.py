"""Sizes of a packed family's model, read from config.json, and the position ids of its tokens."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.text.tokens.tokens import Tokens


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, under names that do not depend on its family."""

    width: int
    inner: int
    """width of the feed-forward layer"""
    heads: int
    layers: int
    vocabulary: int
    positions: int
    """rows of the position table"""
    token_types: int
    """rows of the table of token types; 0: the family has none"""
    epsilon: float
    """of the layer normalizations"""
    activation: str
    counts_from_pad: bool
    """position ids start after the padding id and do not count padding tokens (RoBERTa, MPNet)"""
    pad_id: int

    def position_ids(self, tokens: Tokens) -> np.ndarray:
        """Row of the position table for each token, (tokens,)."""
        if not self.counts_from_pad:
            return tokens.positions
        # a padding token that the text itself contains has the padding position, as in fairseq
        is_counted = tokens.ids != self.pad_id
        counts, starts = np.cumsum(is_counted), tokens.offsets[:-1]
        before_text = counts[starts] - is_counted[starts]
        return (counts - before_text[tokens.owners]) * is_counted + self.pad_id


def shape_of(family: str, config: Mapping[str, object]) -> Shape:
    """Read the sizes from config.json, where DistilBERT has its own names."""

    def number(*names: str, default: float = 0) -> float:
        return next((float(str(config[name])) for name in names if config.get(name) is not None), default)

    counts_from_pad = family in ("roberta", "mpnet")
    return Shape(
        width=int(number("hidden_size", "dim")),
        inner=int(number("intermediate_size", "hidden_dim")),
        heads=int(number("num_attention_heads", "n_heads")),
        layers=int(number("num_hidden_layers", "n_layers")),
        vocabulary=int(number("vocab_size")),
        positions=int(number("max_position_embeddings")),
        token_types=int(number("type_vocab_size", default=2)) if family in ("bert", "roberta") else 0,
        epsilon=number("layer_norm_eps", default=1e-12),
        activation=str(config.get("activation") or config.get("hidden_act") or "gelu"),
        counts_from_pad=counts_from_pad,
        pad_id=1 if family == "mpnet" else int(number("pad_token_id", default=1 if counts_from_pad else 0)),
    )
