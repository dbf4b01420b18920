"""Packed (unpadded) forward pass of the families in `layers/families.py`.

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
from pipeline.models.inference.load_layers import LayerLoader
from pipeline.models.inference.model import Model
from pipeline.models.inference.packed_layer import Attend
from pipeline.models.layers.architecture import LayerAttention
from pipeline.models.layers.attend import Heads, Sight
from pipeline.models.layers.attention import (
    attend_groups,
    attend_varlen,
    groups_of,
    has_varlen,
    relative_bias,
    varlen_limit,
)
from pipeline.models.layers.families import packed_architecture
from pipeline.models.layers.linear import is_onednn
from pipeline.models.layers.names import NAMES, Names, tensor_names
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.padded_attention import most_padded
from pipeline.models.layers.pooling import TABLE_STATE
from pipeline.models.layers.rotary import angles_of
from pipeline.models.layers.weights import Checkpoint
from pipeline.text.tokens.tokens import Tokens


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
        """Return the function that returns a layer's attention within the texts."""
        scale = self.shape.score_scale
        if not self._varlen:
            return self._grouped(tokens.lengths, scale)
        # the bounds have to cover the buffer, so its padding is divided into texts, too
        longest = varlen_limit(tokens.lengths)
        ends = [*range(len(tokens.ids), size, longest), size]
        bounds = self.put(np.array([*tokens.offsets[:-1], *ends], np.int32))

        def attend(heads: Heads, kind: LayerAttention) -> Tensor:
            return attend_varlen(heads, bounds, longest, Sight(kind.before, kind.after, scale))

        return lambda kind: partial(attend, kind=kind)

    def _grouped(self, lengths: np.ndarray, scale: float | None) -> Callable[[LayerAttention], Attend]:
        """Return the function that returns a layer's attention, computed in groups of texts."""

        @cache
        def of_kind(kind: LayerAttention) -> Attend:
            sight = Sight(kind.before, kind.after, scale)
            groups = groups_of(lengths, most_padded(sight) if self._pads else 0, self.put)
            return partial(attend_groups, groups=groups, sight=sight, bias=self._bias)

        return of_kind

    def _embeddings(self, loader: LayerLoader, names: Names) -> tuple[Tensor, Tensor | None]:
        """Load the word table, and the rows that are added to it.

        They are a table of positions, the row of token type 0, which all tokens have, their sums, or None.
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
