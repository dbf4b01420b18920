"""Description of a packed Transformer under names that do not depend on its family."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pipeline.text.tokens.tokens import Tokens


class Biases(NamedTuple):
    """Flags of a layer's linear maps and normalizations: True if they have biases."""

    inputs: bool = True
    """query, key and value"""
    attention: bool = True
    """output of the attention"""
    inner: bool = True
    """first maps of the feed-forward layer"""
    outer: bool = True
    """last map of the feed-forward layer"""
    norms: bool = True


ALL_BIASES = Biases()


class LayerAttention(NamedTuple):
    """Tokens that a token attends to in a layer, besides itself, and the layer's rotary positions."""

    before: int | None = None
    """number of tokens before it; None: all"""
    after: int | None = None
    """number of tokens after it; None: all; 0: attention is causal"""
    base: float | None = None
    """base of the rotary positions (Su et al. 2021); None: no rotation"""


@dataclass(frozen=True)
class Architecture:
    """Sizes and options of a Transformer that the packed forward pass computes."""

    width: int
    inner: int
    """width of the feed-forward layer"""
    heads: int
    key_heads: int
    """heads of keys and values; each serves heads / key_heads heads of queries"""
    head_width: int
    vocabulary: int
    epsilon: float
    """epsilon of the normalizations"""
    activation: str
    attention: tuple[LayerAttention, ...]
    """by layer"""
    positions: int = 0
    """rows of the position table; 0: there is none"""
    token_types: int = 0
    """rows of the table of token types; 0: there is none"""
    norm: Literal["layer", "rms", "rms_around_1"] = "layer"
    """layer or root mean square normalization; weights are stored minus 1 in rms_around_1"""
    biases: Biases = ALL_BIASES
    score_scale: float | None = None
    """factor of the products of queries and keys; None: head_width ** -0.5"""
    word_scale: float = 1.0
    """factor of the rows of the word table before the first layer"""
    counts_from_pad: bool = False
    """position ids start after the padding id and do not count padding tokens (RoBERTa, MPNet)"""
    pad_id: int = 0

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.attention)

    @property
    def bases(self) -> frozenset[float]:
        """Bases of the rotary positions of all layers."""
        return frozenset(layer.base for layer in self.attention if layer.base is not None)

    def position_ids(self, tokens: Tokens) -> np.ndarray:
        """Return each token's position, (tokens,): its row in the position table, if there is one."""
        if not self.counts_from_pad:
            return tokens.positions
        # a padding token that the text itself contains has the padding position, as in fairseq
        is_counted = tokens.ids != self.pad_id
        counts, starts = np.cumsum(is_counted), tokens.offsets[:-1]
        before_text = counts[starts] - is_counted[starts]
        return (counts - before_text[tokens.owners]) * is_counted + self.pad_id
