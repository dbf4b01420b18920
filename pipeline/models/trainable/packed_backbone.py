"""Packed forward passes that can be trained, under the checkpoint's own parameter names."""

import functools
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.attention import Block, attend_blocks, blocks_of, relative_bias
from pipeline.models.layers.linear import ACTIVATIONS, TrainableLinear
from pipeline.models.layers.pooling import TABLE_STATE, Segments, segments
from pipeline.models.layers.shape import Shape, shape_of
from pipeline.models.layers.weights import NAMES, Checkpoint, Names
from pipeline.models.trainable.backbones import Backbone, ForwardRequest
from pipeline.text.tokens.budget import longest_first
from pipeline.text.tokens.tokens import Tokens


@dataclass(frozen=True)
class Rates:
    """Dropout rates."""

    embedding: float
    """after the normalization of the embeddings"""
    attention: float
    """of the attention probabilities"""
    output: float
    """of the attention's output, before the residual sum; DistilBERT has no dropout there"""
    feed_forward: float


def rates_of(folder: EncoderFolder, dropout: float | None) -> Rates:
    """Return the rates of config.json, or `dropout` for all that the family has."""

    def rate(*names: str) -> float:
        given = (folder.config[name] for name in names if folder.config.get(name) is not None)
        return float(next(given, 0.1)) if dropout is None else dropout

    hidden = rate("hidden_dropout_prob", "dropout")
    attention = rate("attention_probs_dropout_prob", "attention_dropout")
    return Rates(hidden, attention, 0.0 if folder.family == "distilbert" else hidden, hidden)


class Layer(nn.Module):
    """One post-norm Transformer layer (Vaswani et al. 2017); its modules have the family's names and can be
    replaced by adapted ones.

    Attributes:
        compiled: compile the operations between the matrix products; the products have kernels of their own.
    """

    def __init__(self, shape: Shape, names: Names, rates: Rates) -> None:
        super().__init__()
        self.compiled, self._heads, self._names, self._rates = False, shape.heads, names, rates
        self._activation = ACTIVATIONS[shape.activation]
        width, inner = shape.width, shape.inner
        sizes = dict.fromkeys((names.query, names.key, names.value, names.output), (width, width))
        for name, size in {**sizes, names.up: (width, inner), names.down: (inner, width)}.items():
            _plant(self, name, TrainableLinear(*size, device="meta"))
        for name in (names.output_norm, names.down_norm):
            _plant(self, name, nn.LayerNorm(width, shape.epsilon, device="meta"))

    def forward(self, x: Tensor, blocks: tuple[Block, ...], bias: Tensor | None) -> Tensor:
        """Return (T, d) for (T, d)."""
        names, rates, part = self._names, self._rates, self.get_submodule
        query, key, value = (part(name)(x) for name in (names.query, names.key, names.value))
        rate = rates.attention if self.training else 0.0
        mixed = attend_blocks((query, key, value), blocks, self._heads, rate, bias)
        x = self._added(x, part(names.output)(mixed), names.output_norm, rates.output)
        inner = self._maybe_compiled(self._activation)(part(names.up)(x))
        return self._added(x, part(names.down)(inner), names.down_norm, rates.feed_forward)

    def _added(self, x: Tensor, update: Tensor, name: str, rate: float) -> Tensor:
        norm: Any = self.get_submodule(name)
        parameters = norm.weight, norm.bias, norm.eps
        return self._maybe_compiled(_norm_of_sum)(x, update, parameters, rate if self.training else 0.0)

    def _maybe_compiled(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return _compiled(function) if self.compiled else function


def _norm_of_sum(x: Tensor, update: Tensor, norm: tuple[Tensor, Tensor, float], rate: float) -> Tensor:
    """Return the layer norm, given by weight, bias and epsilon, of x + dropout(update)."""
    weight, bias, epsilon = norm
    return F.layer_norm(x + F.dropout(update, rate, rate > 0), weight.shape, weight, bias, epsilon)


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile for any number of tokens: one kernel for all layers."""
    return torch.compile(function, dynamic=True)


class PackedBackbone(Backbone):
    """BERT, RoBERTa, XLM-R, DistilBERT and MPNet on the concatenated tokens of a call.

    There is no padding outside the attention.
    """

    def __init__(self, folder: EncoderFolder, weights: Checkpoint, rates: Rates) -> None:
        super().__init__()
        self.shape, names = shape_of(folder.family, folder.config), NAMES[folder.family]
        self.width, self.layers = self.shape.width, self.shape.layers
        self._rates, self._where = rates, str(folder.path)
        self._deviation = float(folder.config.get("initializer_range", 0.02))
        self._names = [names.layer.format(i=number).rstrip(".") for number in range(self.layers)]
        self._plant_embeddings()
        for name in self._names:
            _plant(self, name, Layer(self.shape, names, rates))
        self._relative = folder.family == "mpnet"
        if self._relative:
            buckets = int(folder.config.get("relative_attention_num_buckets", 32))
            table = nn.Embedding(buckets, self.shape.heads, device="meta")
            _plant(self, "encoder.relative_attention_bias", table)
        weights.fill(self)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return hidden states (T, d) of the wanted numbers, and the rows of each text in them."""
        order = longest_first(request.tokens.lengths)
        ids, positions, everything = self._laid_out(request, order)
        blocks = blocks_of(request.tokens.lengths[order], self._put)
        words = self._part("word_embeddings")(ids)
        x = self._embedded(words, positions)
        x = x if request.at_embedding is None else request.at_embedding(x, everything)
        states, bias, where = {TABLE_STATE: words, 0: x}, None, everything
        if self._relative:
            table: Any = self.get_submodule("encoder.relative_attention_bias")
            bias = relative_bias(table.weight, blocks[0].longest)
        for number, name in enumerate(self._names[: max(0, *request.wanted)], start=1):
            x = states[number] = self._run(self.get_submodule(name), x, blocks, bias)
        if request.skip or request.tokens.kept is not None:
            where = self._segments(request.tokens, order, request.skip)
        return {number: states[number] for number in request.wanted}, where

    @property
    def words(self) -> Tensor:
        """(vocabulary, d) rows of the word table."""
        return self._part("word_embeddings").weight

    @property
    def has_dropout(self) -> bool:
        """True if two passes over one text differ in train()."""
        return super().has_dropout or any(rate > 0 for rate in astuple(self._rates))

    def compile_layers(self) -> None:
        """Compile the operations between the matrix products of every layer."""
        for module in self.modules():
            if isinstance(module, Layer):
                module.compiled = True

    def draw(self) -> None:
        """Draw weights from N(0, initializer_range), 0.02 by default (Devlin et al. 2019).

        Biases and the padding token's rows are zero; normalizations are the identity.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self._deviation)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
            if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def _run(self, layer: nn.Module, x: Tensor, blocks: tuple[Block, ...], bias: Tensor | None) -> Tensor:
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(layer, x, blocks, bias, use_reentrant=False)
        return layer(x, blocks, bias)

    def _laid_out(self, request: ForwardRequest, order: np.ndarray) -> tuple[Tensor, Tensor, Segments]:
        """Return (T,) ids and (T,) rows of the position table, longest texts first, and the rows of each
        text, in the order of the call.
        """
        tokens, shape = request.tokens, self.shape
        part = tokens.of_rows(order)
        if request.positions is None:
            positions = shape.position_rows(part)
        else:
            indices = np.arange(len(part.ids)) + (tokens.offsets[order] - part.offsets[:-1])[part.owners]
            first = shape.pad_id + 1 if shape.counts_from_pad else 0
            positions = np.asarray(request.positions, np.int64)[indices] + first
        if positions.min() < 0 or positions.max() >= shape.positions:
            raise ModelError(
                self._where,
                f"rows 0 to {shape.positions - 1} of the position table",
                f"{positions.min()} to {positions.max()}",
                "shorten the texts, or give positions inside the table",
            )
        plain = Tokens(tokens.ids, tokens.offsets, tokens.truncated)
        return self._put(part.ids.astype(np.int64)), self._put(positions), self._segments(plain, order, 0)

    def _segments(self, tokens: Tokens, order: np.ndarray, skip: int) -> Segments:
        lengths, starts = tokens.lengths, np.empty(len(order), np.int64)
        starts[order] = np.cumsum(lengths[order]) - lengths[order]
        return segments(starts, lengths, skip, self._put, tokens.kept)

    def _embedded(self, words: Tensor, positions: Tensor) -> Tensor:
        x = words + self._part("position_embeddings")(positions)
        if self.shape.token_types:
            x = x + self._part("token_type_embeddings").weight[0]  # every token has type 0
        return F.dropout(self._part("LayerNorm")(x), self._rates.embedding, self.training)

    def _plant_embeddings(self) -> None:
        shape, width = self.shape, self.width
        pad_id = shape.pad_id if shape.counts_from_pad else None
        parts: dict[str, nn.Module] = {
            "word_embeddings": nn.Embedding(shape.vocabulary, width, shape.pad_id, device="meta"),
            "position_embeddings": nn.Embedding(shape.positions, width, pad_id, device="meta"),
        }
        if shape.token_types:
            parts["token_type_embeddings"] = nn.Embedding(shape.token_types, width, device="meta")
        parts["LayerNorm"] = nn.LayerNorm(width, shape.epsilon, device="meta")
        for name, module in parts.items():
            _plant(self, f"embeddings.{name}", module)

    def _part(self, name: str) -> Any:
        return self.get_submodule(f"embeddings.{name}")


def _plant(root: nn.Module, name: str, module: nn.Module) -> None:
    """Add the module under its dotted name; parents that do not exist become empty modules."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)
