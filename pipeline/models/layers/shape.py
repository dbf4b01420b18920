"""Sizes of the packed families' models, and the rows that their tokens have in the position table."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.text.tokens.tokens import Tokens


@dataclass(frozen=True)
class Shape:
    """Sizes of a family's model, by neutral names."""

    width: int
    inner: int
    heads: int
    layers: int
    vocabulary: int
    positions: int
    token_types: int
    epsilon: float
    activation: str
    counts_from_pad: bool
    """positions start behind the padding index and leave out padding tokens (RoBERTa, MPNet)"""
    pad_id: int

    def position_rows(self, tokens: Tokens) -> np.ndarray:
        """Row of the position table for each token, (tokens,)."""
        if not self.counts_from_pad:
            return tokens.positions
        # a padding token that is written out in the text has the padding position, as in fairseq
        real = tokens.ids != self.pad_id
        counted, starts = np.cumsum(real), tokens.offsets[:-1]
        before = counted[starts] - real[starts]
        return (counted - before[tokens.owners]) * real + self.pad_id


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
