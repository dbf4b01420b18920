"""Fast decoding steps for BART-like decoders (Marian, BART, mBART, M2M100, NLLB).

Uses joint projections, a cache that grows in place, and no mask if a batch has no padding. This
saves the overhead of the transformers modules, a quarter of a small model's time or more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.translation.decode_steps import encoded

_FIRST_CAPACITY = 16  # tokens that the cache has room for at first; it doubles


@dataclass(frozen=True)
class _Kind:
    """Differences of a decoder from Marian's."""

    norm_first: bool = False
    first_position: Callable[[Any], int] = lambda decoder: 0
    """row of the first token in the table of position embeddings"""
    pad_position: bool = False
    """a padding token gets the position embedding of padding"""


KINDS = {
    "MarianMTModel": _Kind(),
    "BartForConditionalGeneration": _Kind(first_position=lambda decoder: 2),
    "MBartForConditionalGeneration": _Kind(norm_first=True, first_position=lambda decoder: 2),
    "M2M100ForConditionalGeneration": _Kind(
        norm_first=True, first_position=lambda decoder: int(decoder.padding_idx) + 1, pad_position=True
    ),
}


def is_fused(model: Any) -> bool:
    """Return whether `FusedStepper` supports this model: its class, and no replaced linear layer (LoRA)."""
    return type(model).__name__ in KINDS and all(
        type(part) is nn.Linear
        for name, part in model.get_decoder().named_modules()
        if name.endswith(("_proj", ".fc1", ".fc2"))
    )


class FusedStepper:
    """Stepper of a model for which `is_fused` is true. Its projections become views of joint weights."""

    def __init__(self, model: Any) -> None:
        self._model, decoder = model, model.get_decoder()
        self._kind = KINDS[type(model).__name__]
        self.layers = [_Layer(layer, self._kind.norm_first) for layer in decoder.layers]
        words = decoder.embed_tokens
        self._words: Tensor = words.weight
        self._scale = float(getattr(decoder, "embed_scale", getattr(words, "embed_scale", 1.0)))
        table = decoder.embed_positions
        self._positions: Tensor = table.weights if hasattr(table, "weights") else table.weight
        self._first, self._pad = self._kind.first_position(decoder), decoder.padding_idx
        self._first_norm = getattr(decoder, "layernorm_embedding", nn.Identity())
        self._last_norm = getattr(decoder, "layer_norm", nn.Identity())
        self._bias = model.final_logits_bias[0] if hasattr(model, "final_logits_bias") else None

    def begin(self, ids: Tensor, mask: Tensor, copies: int) -> "FusedCourse":
        """Encode the texts and start `copies` translations of each; see `Stepper.begin`."""
        states = encoded(self._model, ids, mask)
        hidden = None
        if not bool(mask.all()):
            hidden = torch.zeros_like(mask, dtype=states.dtype)
            hidden = hidden.masked_fill_(mask == 0, -math.inf)[:, None, None]
        course = FusedCourse(self, [layer.crossed(states) for layer in self.layers], hidden)
        if copies > 1:
            course.keep(torch.arange(len(ids), device=ids.device).repeat_interleave(copies))
        return course

    def embed(self, tokens: Tensor, step: int) -> Tensor:
        """Return the input of the first layer, (n, d), for tokens (n,) at position `step`."""
        position = self._positions[self._first + step]
        if self._kind.pad_position:
            position = torch.where(tokens[:, None] == self._pad, self._positions[self._pad], position)
        embedded: Tensor = self._first_norm(F.embedding(tokens, self._words) * self._scale + position)
        return embedded

    def project(self, states: Tensor) -> Tensor:
        """Logits (n, V) for the last layer's states (n, d)."""
        return F.linear(self._last_norm(states), self._model.lm_head.weight, self._bias)


@dataclass
class FusedCourse:
    """State of translations that all have `step` tokens."""

    stepper: FusedStepper
    crossed: list[tuple[Tensor, ...]]
    """keys and values of the source tokens, for each layer: (n, heads, L, d of a head)"""
    hidden: Tensor | None
    """-inf for padding and 0 for source tokens, (n, 1, 1, L); None if no text is padded"""
    step: int = 0
    cache: list[tuple[Tensor, ...]] = field(default_factory=list)
    """keys and values of the written tokens, for each layer: (n, heads, capacity, d of a head)"""

    def scores(self, tokens: Tensor) -> Tensor:
        """Append the latest tokens (n,) and return the logits (n, V) of the next ones."""
        self._make_room(len(tokens))
        state = self.stepper.embed(tokens, self.step)
        for layer, cache, crossed in zip(self.stepper.layers, self.cache, self.crossed, strict=True):
            state = layer(state, cache, crossed, self.hidden, self.step)
        self.step += 1
        return self.stepper.project(state)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these, (m,) indices; an index may repeat."""
        self.crossed = [tuple(each.index_select(0, rows) for each in pair) for pair in self.crossed]
        self.cache = [tuple(each.index_select(0, rows) for each in pair) for pair in self.cache]
        self.hidden = self.hidden.index_select(0, rows) if self.hidden is not None else None

    def _make_room(self, rows: int) -> None:
        """Allocate the cache at the first step; double it when it is full."""
        if not self.cache:
            keys = self.crossed[0][0]
            shape = (rows, keys.shape[1], _FIRST_CAPACITY, keys.shape[3])
            self.cache = [(keys.new_empty(shape), keys.new_empty(shape)) for _ in self.crossed]
        elif self.step == self.cache[0][0].shape[2]:
            self.cache = [
                tuple(torch.cat([each, torch.empty_like(each)], 2) for each in pair) for pair in self.cache
            ]


class _Layer:
    """Decoder layer for one token of each row: states (n, d) -> (n, d)."""

    def __init__(self, layer: Any, norm_first: bool) -> None:
        self._norm_first, self._heads = norm_first, int(layer.self_attn.num_heads)
        own, other = layer.self_attn, layer.encoder_attn
        self._joined = _stacked(own.q_proj, own.k_proj, own.v_proj)
        self._crossing = _stacked(other.k_proj, other.v_proj)
        self._output, self._cross_query, self._cross_output = own.out_proj, other.q_proj, other.out_proj
        self._up, self._down = layer.fc1, layer.fc2
        self._activation = layer.activation_fn
        self._norms = (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm)

    def crossed(self, states: Tensor) -> tuple[Tensor, ...]:
        """Keys and values, each (n, heads, L, d of a head), for the encoder's states (n, L, d)."""
        rows, length, _ = states.shape
        return tuple(
            each.view(rows, length, self._heads, -1).transpose(1, 2).contiguous()
            for each in F.linear(states, *self._crossing).chunk(2, -1)
        )

    def __call__(
        self,
        state: Tensor,
        cache: tuple[Tensor, ...],
        crossed: tuple[Tensor, ...],
        hidden: Tensor | None,
        step: int,
    ) -> Tensor:
        state = self._residual(state, self._norms[0], lambda x: self._self_attention(x, cache, step))
        state = self._residual(state, self._norms[1], lambda x: self._cross_attention(x, crossed, hidden))
        return self._residual(state, self._norms[2], self._feed_forward)

    def _residual(self, state: Tensor, norm: Any, inner: Callable[[Tensor], Tensor]) -> Tensor:
        """Add `inner` of the state to it, with the norm before or after."""
        after: Tensor = state + inner(norm(state)) if self._norm_first else norm(state + inner(state))
        return after

    def _feed_forward(self, state: Tensor) -> Tensor:
        return _linear(self._activation(_linear(state, self._up)), self._down)

    def _self_attention(self, state: Tensor, cache: tuple[Tensor, ...], step: int) -> Tensor:
        rows, width = state.shape
        query, *new = F.linear(state, *self._joined).split(width, -1)
        for buffer, each in zip(cache, new, strict=True):
            buffer[:, :, step] = each.view(rows, self._heads, -1)
        keys, values = (buffer[:, :, : step + 1] for buffer in cache)
        return _linear(self._attend(query, keys, values, None), self._output)

    def _cross_attention(self, state: Tensor, crossed: tuple[Tensor, ...], hidden: Tensor | None) -> Tensor:
        keys, values = crossed
        query = _linear(state, self._cross_query)
        return _linear(self._attend(query, keys, values, hidden), self._cross_output)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> Tensor:
        """Attention output (n, d) for one query (n, d) per row."""
        rows, width = query.shape
        heads = query.view(rows, self._heads, 1, -1)
        return F.scaled_dot_product_attention(heads, keys, values, attn_mask=hidden).view(rows, width)


def _stacked(*layers: Any) -> tuple[Tensor, Tensor | None]:
    """Concatenate the weights and biases of linear layers.

    The layers' own parameters become views of the result, so that nothing is held twice.
    """
    joined = [
        torch.cat([getattr(layer, name).detach() for layer in layers])
        if getattr(layers[0], name) is not None
        else None
        for name in ("weight", "bias")
    ]
    for name, whole in zip(("weight", "bias"), joined, strict=True):
        if whole is not None:
            for layer, part in zip(layers, whole.chunk(len(layers)), strict=True):
                getattr(layer, name).data = part
    weight, bias = joined
    assert weight is not None
    return weight, bias


def _linear(state: Tensor, layer: Any) -> Tensor:
    return F.linear(state, layer.weight, layer.bias)
