"""Packed (unpadded) forward pass of the families in `spec/families.py`: one of the kinds of `Model`.

Every layer computes (T, d) with the same number of tokens T, so that shapes do not depend on the texts. Only
a text of more than T tokens is computed alone, with the smallest multiple of T that holds it.
"""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.inference.packed_layer import (
    Attend,
    FeedForward,
    FusedKernel,
    HeadNorm,
    Norm,
    PackedAttention,
    PackedLayer,
    Residual,
    norm_of_sum,
)
from pipeline.models.layers.attention import (
    attend_groups,
    attend_varlen,
    groups_of,
    has_varlen,
    relative_bias,
    varlen_limit,
)
from pipeline.models.layers.backbones import Model
from pipeline.models.layers.linear import LEAST_ACTIVATIONS, Linear, LinearMap, is_onednn
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.padded_attention import most_padded
from pipeline.models.layers.padded_mask import Heads, Sight
from pipeline.models.layers.quantized import ROWS_AT_ONCE, QuantizedLinear
from pipeline.models.layers.rotary import angles_of, rotate_by
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.architecture import Architecture, LayerAttention
from pipeline.models.spec.families import packed_architecture
from pipeline.models.spec.pooling import TABLE_STATE
from pipeline.models.spec.tensor_names import NAMES, Names, SublayerNames, tensor_names
from pipeline.text.tokens.tokens import Tokens


class LayerLoader:
    """Loader of the parts of a packed model."""

    def __init__(
        self, architecture: Architecture, names: Names, checkpoint: Checkpoint, arithmetic: Arithmetic
    ) -> None:
        self._architecture, self._names, self._checkpoint = architecture, names, checkpoint
        self._arithmetic = arithmetic
        self._fused = FusedKernel(norm_of_sum) if arithmetic.fused else None
        self._rotate = FusedKernel(rotate_by) if arithmetic.fused else None

    def table(self, name: str, rows: int) -> Tensor:
        """Load a table (rows, d) as float32."""
        return self._checkpoint.tensor(f"{name}.weight", (rows, self._architecture.width))

    def norm(self, name: str | None) -> Norm | None:
        """Load a normalization of the states; None if there is none."""
        if name is None:
            return None
        kind, shape = self._architecture.norm, (self._architecture.width,)
        weight = self.for_sums(self._norm_weight(name, self._architecture.width))
        has_bias = self._architecture.biases.norms
        bias = self.for_sums(self._checkpoint.tensor(f"{name}.bias", shape)) if has_bias else None
        return Norm(
            "layer" if kind == "layer" else "rms", weight, bias, self._architecture.epsilon, self._fused
        )

    def layer(self, number: int) -> PackedLayer:
        """Load a layer."""
        prefix = self._names.layer.format(i=number)
        return PackedLayer(self._attention(prefix, number), self._feed_forward(prefix))

    def for_sums(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device, in the type of residual sums."""
        return tensor.to(self._arithmetic.torch_device, self._arithmetic.sum_dtype)

    def _on_device(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device, in the type of the forward pass."""
        return tensor.to(self._arithmetic.torch_device, self._arithmetic.torch_dtype)

    def _attention(self, prefix: str, number: int) -> PackedAttention:
        shape, names = self._architecture, self._names.attention_of(number)
        inner, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
        maps = self._inputs(prefix, names, (inner, keys, keys), shape.biases.inputs)
        weights, biases = zip(*maps, strict=True)
        has_bias = shape.biases.inputs
        return PackedAttention(
            residual=self._residual(prefix, names, inner, shape.biases.attention),
            inputs=self._linear(torch.cat(weights), torch.cat(biases) if has_bias else None),
            heads=shape.heads,
            key_heads=shape.key_heads,
            norm=self._head_norm(prefix),
            fused_rotation=self._rotate,
        )

    def _feed_forward(self, prefix: str) -> FeedForward:
        shape, names, rows = self._architecture, self._names.feed_forward, self._arithmetic.max_tokens
        maps = self._inputs(prefix, names, (shape.inner,) * (1 + self._names.gated), shape.biases.inner)
        activated, *gated = reversed(maps) if self._names.gate_second else maps
        return FeedForward(
            residual=self._residual(
                prefix,
                names,
                shape.inner,
                shape.biases.outer,
                least=None if gated else LEAST_ACTIVATIONS.get(shape.activation),
            ),
            activated=self._linear(*activated, shape.activation),
            gated=self._linear(*gated[0]) if gated else None,
            rows=min(ROWS_AT_ONCE, rows) if self._arithmetic.is_quantized else rows,
        )

    def _inputs(
        self, prefix: str, names: SublayerNames, rows: tuple[int, ...], has_bias: bool
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Read the first maps of a sublayer, stored one by one or joined. rows: output width of each."""
        width = self._architecture.width
        if len(names.inputs) == len(rows):
            return [
                self._checkpoint.linear(prefix + name, width, outer, bias=has_bias)
                for name, outer in zip(names.inputs, rows, strict=True)
            ]
        (name,) = names.inputs
        weight, bias = self._checkpoint.linear(prefix + name, width, sum(rows), bias=has_bias)
        biases = [None] * len(rows) if bias is None else bias.split(rows)
        return list(zip(weight.split(rows), biases, strict=True))

    def _residual(
        self, prefix: str, names: SublayerNames, inner: int, has_bias: bool, least: float | None = None
    ) -> Residual:
        stored = self._checkpoint.linear(
            prefix + names.output, inner, self._architecture.width, bias=has_bias
        )
        norms = (
            None if name is None else self.norm(prefix + name)
            for name in (names.norm_before, names.norm_of_output, names.norm_of_sum)
        )
        return Residual(self._linear(*stored, least=least), *norms)

    def _head_norm(self, prefix: str) -> HeadNorm | None:
        shape, names = self._architecture, (self._names.query_norm, self._names.key_norm)
        if None in names:
            return None
        weights = (
            self._norm_weight(f"{prefix}{name}", shape.head_width).expand(count, -1)
            for name, count in zip(names, (shape.heads, shape.key_heads), strict=True)
        )
        return HeadNorm(self._on_device(torch.cat(list(weights))), shape.epsilon)

    def _norm_weight(self, name: str, width: int) -> Tensor:
        weight = self._checkpoint.tensor(f"{name}.weight", (width,))
        return weight + 1 if self._architecture.norm == "rms_around_1" else weight

    def _linear(
        self,
        weight: Tensor,
        bias: Tensor | None,
        activation: str | None = None,
        least: float | None = None,
    ) -> LinearMap:
        rows = self._arithmetic.max_tokens
        weight, bias = self._on_device(weight), None if bias is None else self._on_device(bias)
        if self._arithmetic.is_quantized:
            return QuantizedLinear(weight, bias, rows=rows, activation=activation, least=least)
        return Linear(weight, bias, rows=rows, activation=activation)


class PackedModel(Model):
    """Model of a packed family on a device, for buffers of T = `arithmetic.max_tokens` tokens."""

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        self.shape = packed_architecture(folder.config)
        self.width, self.layers = self.shape.width, self.shape.layers
        self.device, self._dtype = arithmetic.torch_device, arithmetic.torch_dtype
        names = NAMES[folder.family]
        used = tensor_names(names, self.shape)
        checkpoint.check_present(used)
        checkpoint.check_used(used)
        loader = LayerLoader(self.shape, names, checkpoint, arithmetic)
        self._tables = self._embeddings(loader, names)
        self._types = self._type_differences(loader, names)
        self._norm = loader.norm(names.embedding_norm)
        self._stack = [loader.layer(number) for number in range(self.layers)]
        self._final_norm = loader.norm(names.final_norm)
        self._bias = self._relative_bias(checkpoint, folder, names.relative_bias)
        self._pads = (
            self._bias is None and self._dtype == torch.bfloat16 and is_onednn(self.device, self._dtype)
        )
        capability = arithmetic.device.capability()
        self._varlen = self._bias is None and has_varlen(
            self._dtype,
            self.shape.head_width,
            capability,
            grouped=self.shape.key_heads < self.shape.heads,
        )

    def forward(
        self, tokens: Tokens, wanted: set[int], max_tokens: int
    ) -> tuple[dict[int, Tensor], np.ndarray]:
        """Compute the hidden states of a buffer; texts begin at token 0, and padding fills the rest."""
        size = max_tokens * max(1, -(-len(tokens.ids) // max_tokens))
        ids = np.full(size, self.shape.pad_id, np.int64)
        ids[: len(tokens.ids)] = tokens.ids
        positions = np.full(size, self.shape.pad_id if self.shape.counts_from_pad else 0, np.int64)
        positions[: len(tokens.ids)] = self.shape.position_ids(tokens)
        words, at = F.embedding(self.put(ids), self._tables[0]), self.put(positions)
        x = self._embed(words, at, tokens.types)
        states = {0: x} | ({TABLE_STATE: words} if TABLE_STATE in wanted else {})
        angles = {base: angles_of(at, base, self.shape.head_width) for base in self.shape.bases}
        attend = self._attention(tokens, size)
        for number, layer in enumerate(self._stack[: max(0, *wanted)], start=1):
            kind = self.shape.attention[number - 1]
            x = layer(x, attend(kind), None if kind.base is None else angles[kind.base])
            if number == self.layers and self._final_norm is not None:
                x = self._final_norm(x)
            states[number] = x
            if number - 1 not in wanted:
                del states[number - 1]
        return states, tokens.offsets[:-1]

    def _embed(self, words: Tensor, positions: Tensor, types: np.ndarray | None) -> Tensor:
        """Return the output of the embedding layer for (T, d) words, (T,) positions and token types."""
        x = words if self.shape.word_scale == 1 else words * self.shape.word_scale
        if self._tables[1] is not None:
            at_positions = self.shape.positions > 0
            x = x + (F.embedding(positions, self._tables[1]) if at_positions else self._tables[1])
        if types is not None and self._types is not None:
            all_types = np.zeros(len(x), np.int64)
            all_types[: len(types)] = types
            x = x + F.embedding(self.put(all_types), self._types)
        return x if self._norm is None else self._norm(x)

    def _attention(self, tokens: Tokens, size: int) -> Callable[[LayerAttention], Attend]:
        """Return a function that gives the attention within the texts for a layer's kind of attention."""
        scale = self.shape.score_scale
        if not self._varlen:
            return self._grouped(tokens.lengths, scale)
        # the bounds have to cover the buffer, so its padding is treated as texts, too
        longest = varlen_limit(tokens.lengths)
        ends = [*range(len(tokens.ids), size, longest), size]
        bounds = self.put(np.array([*tokens.offsets[:-1], *ends], np.int32))

        def attend(heads: Heads, kind: LayerAttention) -> Tensor:
            return attend_varlen(heads, bounds, longest, Sight(kind.before, kind.after, scale))

        return lambda kind: partial(attend, kind=kind)

    def _grouped(self, lengths: np.ndarray, scale: float | None) -> Callable[[LayerAttention], Attend]:
        """Return a function that gives the attention in groups of texts for a layer's kind of attention."""

        @cache
        def of_kind(kind: LayerAttention) -> Attend:
            sight = Sight(kind.before, kind.after, scale)
            groups = groups_of(lengths, most_padded(sight) if self._pads else 0, self.put)
            return partial(attend_groups, groups=groups, sight=sight, bias=self._bias)

        return of_kind

    def _embeddings(self, loader: LayerLoader, names: Names) -> tuple[Tensor, Tensor | None]:
        """Load the word table, and the rows that are added to it.

        These rows are the table of positions, the row of token type 0 (which all tokens have), the sums of
        both, or None.
        """
        words = loader.for_sums(loader.table(names.words, self.shape.vocabulary))
        added = None
        if names.positions and self.shape.positions:
            added = loader.table(names.positions, self.shape.positions)
        if names.token_types and self.shape.token_types:
            first = loader.table(names.token_types, self.shape.token_types)[0]
            added = first if added is None else added + first
        return words, None if added is None else loader.for_sums(added)

    def _type_differences(self, loader: LayerLoader, names: Names) -> Tensor | None:
        """Load what each token type adds beyond type 0, (types, d); None for a model without types."""
        if not (names.token_types and self.shape.token_types):
            return None
        table = loader.table(names.token_types, self.shape.token_types)
        return loader.for_sums(table - table[0])

    def _relative_bias(
        self, checkpoint: Checkpoint, folder: EncoderFolder, name: str | None
    ) -> Tensor | None:
        """Return the attention biases by distance, from the table of this name; None without one."""
        if name is None:
            return None
        buckets = int(folder.config.get("relative_attention_num_buckets", 32))
        table = checkpoint.tensor(f"{name}.weight", (buckets, self.shape.heads))
        return relative_bias(table, folder.max_length).to(self.device, self._dtype)
