"""A step of a decoder of BART's kind (Marian, BART, mBART, M2M100, NLLB) without what its modules do around the arithmetic, which is a quarter of a small model's time
or more: joint projections, a cache that grows in place, and no mask where there is nothing to hide.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.translation.decode_steps import encoded

_FIRST_PLACES = 16  # of the cache of what is written; it doubles


@dataclass(frozen=True)
class _Kind:
    """How a decoder differs from Marian's."""

    norm_first: bool = False
    first_place: Callable[[Any], int] = lambda decoder: 0
    """where in its table of positions the first token's stands"""
    pads_stand_nowhere: bool = False
    """whether a padding token has the position of padding"""


KINDS = {
    "MarianMTModel": _Kind(),
    "BartForConditionalGeneration": _Kind(first_place=lambda decoder: 2),
    "MBartForConditionalGeneration": _Kind(norm_first=True, first_place=lambda decoder: 2),
    "M2M100ForConditionalGeneration": _Kind(
        norm_first=True, first_place=lambda decoder: int(decoder.padding_idx) + 1, pads_stand_nowhere=True
    ),
}


def is_fused(model: Any) -> bool:
    """Whether `FusedStepper` computes exactly this model: its class, and no layer that something else was put into."""
    return type(model).__name__ in KINDS and all(
        type(part) is nn.Linear
        for name, part in model.get_decoder().named_modules()
        if name.endswith(("_proj", ".fc1", ".fc2"))
    )


class FusedStepper:
    """Steps of a model for which `is_fused`."""

    def __init__(self, model: Any) -> None:
        self._model, decoder = model, model.get_decoder()
        self._kind = KINDS[type(model).__name__]
        self.layers = [_Layer(layer, self._kind.norm_first) for layer in decoder.layers]
        self._words, self._scale = (
            decoder.embed_tokens.weight,
            float(getattr(decoder, "embed_scale", getattr(decoder.embed_tokens, "embed_scale", 1.0))),
        )
        places = decoder.embed_positions
        self._places: Tensor = places.weights if hasattr(places, "weights") else places.weight
        self._first, self._pad = self._kind.first_place(decoder), decoder.padding_idx
        self._before, self._after = (
            getattr(decoder, "layernorm_embedding", _same),
            getattr(decoder, "layer_norm", _same),
        )
        self._bias = model.final_logits_bias[0] if hasattr(model, "final_logits_bias") else None

    def begin(self, ids: Tensor, mask: Tensor, copies: int, longest: int) -> "FusedCourse":
        states = encoded(self._model, ids, mask)
        crossed = [layer.crossed(states) for layer in self.layers]
        hidden = (
            None
            if bool(mask.all())
            else torch.zeros_like(mask, dtype=states.dtype).masked_fill_(mask == 0, -math.inf)[:, None, None]
        )
        course = FusedCourse(self, crossed, hidden)
        if copies > 1:
            course.keep(torch.arange(len(ids), device=ids.device).repeat_interleave(copies))
        return course

    def embed(self, tokens: Tensor, step: int) -> Tensor:
        """(n, d): what the first layer gets."""
        places = self._places[self._first + step]
        if self._kind.pads_stand_nowhere:
            places = torch.where(tokens[:, None] == self._pad, self._places[self._pad], places)
        embedded: Tensor = self._before(F.embedding(tokens, self._words) * self._scale + places)
        return embedded

    def project(self, hidden: Tensor) -> Tensor:
        """(n, V) logits of the last layer's states."""
        return F.linear(self._after(hidden), self._model.lm_head.weight, self._bias)


@dataclass
class FusedCourse:
    """Translations at one place; keys and values of each layer lie in buffers (n, heads, places, d of a head)."""

    own: FusedStepper
    crossed: list[tuple[Tensor, ...]]
    hidden: Tensor | None
    """-inf for what is no source token; None where all texts are equally long"""
    step: int = 0
    kept: list[tuple[Tensor, ...]] = field(default_factory=list)

    def scores(self, tokens: Tensor) -> Tensor:
        self._make_room(len(tokens))
        state = self.own.embed(tokens, self.step)
        for layer, kept, crossed in zip(self.own.layers, self.kept, self.crossed, strict=True):
            state = layer(state, kept, crossed, self.hidden, self.step)
        self.step += 1
        return self.own.project(state)

    def keep(self, rows: Tensor) -> None:
        self.crossed = [tuple(each.index_select(0, rows) for each in pair) for pair in self.crossed]
        self.kept = [tuple(each.index_select(0, rows) for each in pair) for pair in self.kept]
        self.hidden = self.hidden.index_select(0, rows) if self.hidden is not None else None

    def _make_room(self, rows: int) -> None:
        if not self.kept:
            keys = self.crossed[0][0]
            self.kept = [
                tuple(keys.new_empty(rows, keys.shape[1], _FIRST_PLACES, keys.shape[3]) for _ in range(2))
                for _ in self.crossed
            ]
        elif self.step == self.kept[0][0].shape[2]:
            self.kept = [
                tuple(torch.cat([each, torch.empty_like(each)], 2) for each in pair) for pair in self.kept
            ]


class _Layer:
    """A decoder layer's step: (n, d) -> (n, d)."""

    def __init__(self, layer: Any, norm_first: bool) -> None:
        self._norm_first, self._heads = norm_first, int(layer.self_attn.num_heads)
        own, other = layer.self_attn, layer.encoder_attn
        self._joined = _stacked(own.q_proj, own.k_proj, own.v_proj)
        self._crossing = _stacked(other.k_proj, other.v_proj)
        self._out, self._asked, self._out_crossed, self._up, self._down = (
            own.out_proj,
            other.q_proj,
            other.out_proj,
            layer.fc1,
            layer.fc2,
        )
        self._activation = layer.activation_fn
        self._norms = (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm)

    def crossed(self, states: Tensor) -> tuple[Tensor, ...]:
        """Keys and values (n, heads, L, d of a head) of the encoder's states (n, L, d)."""
        rows, length, _ = states.shape
        return tuple(
            each.view(rows, length, self._heads, -1).transpose(1, 2).contiguous()
            for each in F.linear(states, *self._crossing).chunk(2, -1)
        )

    def __call__(
        self,
        state: Tensor,
        kept: tuple[Tensor, ...],
        crossed: tuple[Tensor, ...],
        hidden: Tensor | None,
        step: int,
    ) -> Tensor:
        state = self._around(state, self._norms[0], lambda own: self._look_back(own, kept, step))
        state = self._around(state, self._norms[1], lambda own: self._look_across(own, crossed, hidden))
        return self._around(
            state, self._norms[2], lambda own: _linear(self._activation(_linear(own, self._up)), self._down)
        )

    def _around(self, state: Tensor, norm: Any, inner: Callable[[Tensor], Tensor]) -> Tensor:
        after: Tensor = state + inner(norm(state)) if self._norm_first else norm(state + inner(state))
        return after

    def _look_back(self, state: Tensor, kept: tuple[Tensor, ...], step: int) -> Tensor:
        rows, width = state.shape
        asked, *new = F.linear(state, *self._joined).split(width, -1)
        for buffer, each in zip(kept, new, strict=True):
            buffer[:, :, step] = each.view(rows, self._heads, -1)
        keys, values = (buffer[:, :, : step + 1] for buffer in kept)
        return _linear(self._attended(asked, keys, values, None), self._out)

    def _look_across(self, state: Tensor, crossed: tuple[Tensor, ...], hidden: Tensor | None) -> Tensor:
        keys, values = crossed
        return _linear(self._attended(_linear(state, self._asked), keys, values, hidden), self._out_crossed)

    def _attended(self, asked: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> Tensor:
        rows, width = asked.shape
        return F.scaled_dot_product_attention(
            asked.view(rows, self._heads, 1, -1), keys, values, attn_mask=hidden
        ).view(rows, width)


def _stacked(*layers: Any) -> tuple[Tensor, Tensor | None]:
    """(weight, bias) of linear layers side by side; the layers' own become views of them, so that nothing is held twice."""
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


def _same(state: Tensor) -> Tensor:
    return state
