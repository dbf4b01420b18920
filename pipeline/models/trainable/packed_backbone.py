"""Trainable backbone of the packed families, under the checkpoint's own parameter names."""

import functools
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.attention import Block, attend_blocks, blocks_of, relative_bias
from pipeline.models.layers.linear import ACTIVATIONS, TrainableLinear
from pipeline.models.layers.pooling import TABLE_STATE, Segments, find_segments
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
    """Return the rates of config.json, or the rate `dropout` wherever the family has dropout."""

    def rate(*names: str) -> float:
        if dropout is not None:
            return dropout
        given = (folder.config[name] for name in names if folder.config.get(name) is not None)
        return float(next(given, 0.1))

    hidden = rate("hidden_dropout_prob", "dropout")
    attention = rate("attention_probs_dropout_prob", "attention_dropout")
    output = 0.0 if folder.family == "distilbert" else hidden
    return Rates(embedding=hidden, attention=attention, output=output, feed_forward=hidden)


class Layer(nn.Module):
    """One post-norm Transformer layer (Vaswani et al. 2017).

    Its modules have the family's names, so that LoRA can replace them.

    Attributes:
        compiled: compile the operations between the matrix products; the products have kernels of their own.
    """

    def __init__(self, shape: Shape, names: Names, rates: Rates) -> None:
        super().__init__()
        self.compiled, self._heads, self._names, self._rates = False, shape.heads, names, rates
        self._activation = ACTIVATIONS[shape.activation]
        width, inner = shape.width, shape.inner
        for name in (names.query, names.key, names.value, names.output):
            _add_module(self, name, TrainableLinear(width, width, device="meta"))
        _add_module(self, names.up, TrainableLinear(width, inner, device="meta"))
        _add_module(self, names.down, TrainableLinear(inner, width, device="meta"))
        for name in (names.output_norm, names.down_norm):
            _add_module(self, name, nn.LayerNorm(width, shape.epsilon, device="meta"))

    def forward(self, x: Tensor, blocks: tuple[Block, ...], bias: Tensor | None) -> Tensor:
        """Return (T, d) states for x (T, d).

        Args:
            x: states of the texts, text after text.
            blocks: texts that attention pads together.
            bias: see `attend_blocks`.
        """
        names, rates, module = self._names, self._rates, self.get_submodule
        query, key, value = (module(name)(x) for name in (names.query, names.key, names.value))
        rate = rates.attention if self.training else 0.0
        attended = attend_blocks((query, key, value), blocks, self._heads, rate, bias)
        x = self._add_and_norm(x, module(names.output)(attended), names.output_norm, rates.output)
        inner = self._maybe_compiled(self._activation)(module(names.up)(x))
        return self._add_and_norm(x, module(names.down)(inner), names.down_norm, rates.feed_forward)

    def _add_and_norm(self, x: Tensor, update: Tensor, norm_name: str, rate: float) -> Tensor:
        """Add the output of a sublayer, after dropout, and normalize the sum."""
        norm: Any = self.get_submodule(norm_name)
        weight_bias_epsilon = norm.weight, norm.bias, norm.eps
        return self._maybe_compiled(_norm_of_sum)(
            x, update, rate if self.training else 0.0, weight_bias_epsilon
        )

    def _maybe_compiled(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return _compiled(function) if self.compiled else function


def _norm_of_sum(
    x: Tensor, update: Tensor, rate: float, weight_bias_epsilon: tuple[Tensor, Tensor, float]
) -> Tensor:
    """Return the layer norm of x + dropout(update)."""
    return F.layer_norm(x + F.dropout(update, rate, rate > 0), x.shape[-1:], *weight_bias_epsilon)


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
        self._rates, self._path = rates, str(folder.path)
        self._initializer_std = float(folder.config.get("initializer_range", 0.02))
        self._names = [names.layer.format(i=number).rstrip(".") for number in range(self.layers)]
        self._add_embeddings()
        for name in self._names:
            _add_module(self, name, Layer(self.shape, names, rates))
        self._has_relative_bias = folder.family == "mpnet"
        if self._has_relative_bias:
            buckets = int(folder.config.get("relative_attention_num_buckets", 32))
            table = nn.Embedding(buckets, self.shape.heads, device="meta")
            _add_module(self, "encoder.relative_attention_bias", table)
        weights.fill(self)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return hidden states (T, d) of the wanted numbers, and the rows of each text in them."""
        order = longest_first(request.tokens.lengths)
        ids, positions, all_tokens = self._arrange(request, order)
        blocks = blocks_of(request.tokens.lengths[order], self._put)
        words = self._embedding_module("word_embeddings")(ids)
        x = self._embed(words, positions, request.tokens.of_rows(order).types)
        if request.at_embedding is not None:
            x = request.at_embedding(x, all_tokens)
        states, bias = {TABLE_STATE: words, 0: x}, None
        if self._has_relative_bias:
            table: Any = self.get_submodule("encoder.relative_attention_bias")
            bias = relative_bias(table.weight, blocks[0].longest)
        for number, name in enumerate(self._names[: max(0, *request.wanted)], start=1):
            x = states[number] = self._run_layer(self.get_submodule(name), x, blocks, bias)
        segments = all_tokens
        if request.skip or request.tokens.kept is not None:
            segments = self._find_segments(request.tokens, order, request.skip)
        return {number: states[number] for number in request.wanted}, segments

    @property
    def word_table(self) -> Tensor:
        """Word embeddings (vocabulary, d)."""
        return self._embedding_module("word_embeddings").weight

    @property
    def has_dropout(self) -> bool:
        """True if two passes over one text differ in train()."""
        return super().has_dropout or any(rate > 0 for rate in astuple(self._rates))

    @property
    def hidden_dropout(self) -> float:
        """Rate of dropout of the feed-forward layers in train()."""
        return self._rates.feed_forward

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
                nn.init.normal_(module.weight, std=self._initializer_std)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
            if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def _arrange(self, request: ForwardRequest, order: np.ndarray) -> tuple[Tensor, Tensor, Segments]:
        """Arrange the texts for the forward pass.

        Args:
            request: texts and, if not the usual ones, positions.
            order: indices of the texts, longest first.

        Returns:
            (T,) token ids and (T,) position ids in that order, and the rows of each text in the order of the
            call.
        """
        tokens, shape = request.tokens, self.shape
        ordered = tokens.of_rows(order)
        if request.positions is None:
            positions = shape.position_ids(ordered)
        else:
            indices = tokens.offsets[order][ordered.owners] + ordered.positions
            first = shape.pad_id + 1 if shape.counts_from_pad else 0
            positions = np.asarray(request.positions, np.int64)[indices] + first
        if positions.min() < 0 or positions.max() >= shape.positions:
            raise ModelError(
                self._path,
                f"rows 0 to {shape.positions - 1} of the position table",
                f"{positions.min()} to {positions.max()}",
                "lower encoder.max_length, or use positions within the table",
            )
        segments = self._find_segments(replace(tokens, kept=None), order, 0)
        return self._put(ordered.ids.astype(np.int64)), self._put(positions), segments

    def _find_segments(self, tokens: Tokens, order: np.ndarray, skip: int) -> Segments:
        """Find the rows of each text, in the order of the call, for texts computed in another order."""
        lengths, starts = tokens.lengths, np.empty(len(order), np.int64)
        starts[order] = np.cumsum(lengths[order]) - lengths[order]
        return find_segments(starts, lengths, skip, self._put, tokens.kept)

    def _embed(self, words: Tensor, positions: Tensor, types: np.ndarray | None) -> Tensor:
        """Return the output of the embedding layer for (T, d) words, (T,) positions and (T,) token types."""
        x = words + self._embedding_module("position_embeddings")(positions)
        if self.shape.token_types:
            table = self._embedding_module("token_type_embeddings").weight
            x = x + (table[0] if types is None else F.embedding(self._put(types), table))
        return F.dropout(self._embedding_module("LayerNorm")(x), self._rates.embedding, self.training)

    def _add_embeddings(self) -> None:
        """Add the modules of the embedding layer, without values."""
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
            _add_module(self, f"embeddings.{name}", module)

    def _embedding_module(self, name: str) -> Any:
        return self.get_submodule(f"embeddings.{name}")


def _add_module(root: nn.Module, name: str, module: nn.Module) -> None:
    """Add the module under its dotted name; parents that do not exist become empty modules."""
    *parents, last = name.split(".")
    for parent in parents:
        if parent not in root._modules:
            root.add_module(parent, nn.Module())
        root = root.get_submodule(parent)
    root.add_module(last, module)
