"""Packed (unpadded) forward pass of BERT, RoBERTa, XLM-RoBERTa, DistilBERT and MPNet.

Every layer computes (T, d) with the same number of tokens T, so that shapes do not depend on the texts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.inference.model import Model
from pipeline.models.layers.attention import Group, attend_groups, attend_varlen, relative_bias
from pipeline.models.layers.linear import Linear
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.pooling import TABLE_STATE
from pipeline.models.layers.shape import shape_of
from pipeline.models.layers.weights import NAMES, Checkpoint, Names, tensor_names
from pipeline.text.tokens.tokens import Tokens


class Norm:
    """Layer normalization over the last dimension, of x or of a residual sum."""

    def __init__(
        self, weight: Tensor, bias: Tensor, epsilon: float, fused: Callable[..., Tensor] | None = None
    ) -> None:
        self._weight, self._bias, self._epsilon, self._fused = weight, bias, epsilon, fused

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize x (T, d)."""
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._epsilon)

    def of_sum(self, update: Tensor, x: Tensor) -> Tensor:
        """Normalize update + x; may overwrite `update`."""
        if self._fused is None:
            return self(update.add_(x))
        return self._fused(update, x, self._weight, self._bias, self._epsilon)


def _norm_of_sum(update: Tensor, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return F.layer_norm(update + x, weight.shape, weight, bias, epsilon)


@dataclass(frozen=True)
class PackedLayer:
    """One post-norm Transformer layer (Vaswani et al. 2017)."""

    qkv: Linear
    output: Linear
    output_norm: Norm
    up: Linear
    down: Linear
    down_norm: Norm


class PackedModel(Model):
    """Model of a packed family on a device, for buffers of T = `arithmetic.max_tokens` tokens."""

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        self.shape = shape_of(folder.family, folder.config)
        self.width, self.layers = self.shape.width, self.shape.layers
        self.device, self._dtype = arithmetic.torch_device, arithmetic.torch_dtype
        self._rows, self._longest = arithmetic.max_tokens, folder.max_length
        used = tensor_names(folder.family, self.layers, token_types=self.shape.token_types > 0)
        checkpoint.check_present(used)
        checkpoint.log_unused(used)
        self._fused = torch.compile(_norm_of_sum) if arithmetic.fused else None
        self._tables = self._embeddings(checkpoint)
        self._norm = self._layer_norm(checkpoint, "embeddings.LayerNorm")
        self._stack = [self._layer(checkpoint, NAMES[folder.family], number) for number in range(self.layers)]
        self._bias = self._relative_bias(checkpoint, folder) if folder.family == "mpnet" else None
        self._varlen = self.device.type == "cuda" and self._dtype != torch.float32 and self._bias is None

    def forward(
        self, tokens: Tokens, wanted: set[int], max_tokens: int
    ) -> tuple[dict[int, Tensor], np.ndarray]:
        """Compute the hidden states (max_tokens, d); texts begin at token 0, and padding fills the rest."""
        ids = np.full(max_tokens, self.shape.pad_id, np.int64)
        ids[: len(tokens.ids)] = tokens.ids
        positions = np.full(max_tokens, self.shape.pad_id if self.shape.counts_from_pad else 0, np.int64)
        positions[: len(tokens.ids)] = self.shape.position_ids(tokens)
        words = F.embedding(self.put(ids), self._tables[0])
        x = self._norm(words + F.embedding(self.put(positions), self._tables[1]))
        states = {0: x} | ({TABLE_STATE: words} if TABLE_STATE in wanted else {})
        attend = self._attention(tokens, max_tokens)
        for number, layer in enumerate(self._stack[: max(0, *wanted)], start=1):
            x = layer.output_norm.of_sum(layer.output(attend(layer.qkv(x))), x)
            x = states[number] = layer.down_norm.of_sum(layer.down(layer.up(x)), x)
            if number - 1 not in wanted:
                del states[number - 1]
        return states, tokens.offsets[:-1]

    def _attention(self, tokens: Tokens, max_tokens: int) -> Callable[[Tensor], Tensor]:
        """Return attention within the texts, (max_tokens, d) for (max_tokens, 3 d)."""
        starts, heads = tokens.offsets[:-1], self.shape.heads
        if not self._varlen:
            return partial(
                attend_groups, groups=_groups(tokens.lengths, starts), heads=heads, bias=self._bias
            )
        # the bounds have to cover the buffer, so its padding is divided into texts, too
        ends = [*range(len(tokens.ids), max_tokens, self._longest), max_tokens]
        return partial(
            attend_varlen,
            bounds=self.put(np.array([*starts, *ends], np.int32)),
            longest=self._longest,
            heads=heads,
        )

    def _embeddings(self, checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
        """Load the tables of words and positions; the latter include token type 0, which all tokens have."""

        def table(name: str, rows: int) -> Tensor:
            return checkpoint.tensor(f"embeddings.{name}_embeddings.weight", (rows, self.width))

        words, positions = table("word", self.shape.vocabulary), table("position", self.shape.positions)
        if self.shape.token_types:
            positions = positions + table("token_type", self.shape.token_types)[0]
        return self._on_device(words), self._on_device(positions)

    def _layer(self, checkpoint: Checkpoint, names: Names, number: int) -> PackedLayer:
        prefix, width, inner = names.layer.format(i=number), self.width, self.shape.inner
        weights, biases = zip(
            *(
                checkpoint.linear(prefix + name, width, width)
                for name in (names.query, names.key, names.value)
            ),
            strict=True,
        )
        return PackedLayer(
            qkv=self._linear(torch.cat(weights), torch.cat(biases)),
            output=self._linear(*checkpoint.linear(prefix + names.output, width, width)),
            output_norm=self._layer_norm(checkpoint, prefix + names.output_norm),
            up=self._linear(*checkpoint.linear(prefix + names.up, width, inner), self.shape.activation),
            down=self._linear(*checkpoint.linear(prefix + names.down, inner, width)),
            down_norm=self._layer_norm(checkpoint, prefix + names.down_norm),
        )

    def _linear(self, weight: Tensor, bias: Tensor, activation: str | None = None) -> Linear:
        return Linear(self._on_device(weight), self._on_device(bias), rows=self._rows, activation=activation)

    def _layer_norm(self, checkpoint: Checkpoint, name: str) -> Norm:
        weight, bias = (checkpoint.tensor(f"{name}.{part}", (self.width,)) for part in ("weight", "bias"))
        return Norm(self._on_device(weight), self._on_device(bias), self.shape.epsilon, self._fused)

    def _relative_bias(self, checkpoint: Checkpoint, folder: EncoderFolder) -> Tensor:
        buckets = int(folder.config.get("relative_attention_num_buckets", 32))
        table = checkpoint.tensor("encoder.relative_attention_bias.weight", (buckets, self.shape.heads))
        return self._on_device(relative_bias(table, folder.max_length))

    def _on_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self._dtype)


def _groups(lengths: np.ndarray, starts: np.ndarray) -> tuple[Group, ...]:
    """Group adjacent texts of equal length."""
    firsts = np.flatnonzero(np.diff(lengths, prepend=-1))
    return tuple(
        Group(int(starts[first]), int(count), int(lengths[first]))
        for first, count in zip(firsts, np.diff(firsts, append=len(lengths)), strict=True)
    )
