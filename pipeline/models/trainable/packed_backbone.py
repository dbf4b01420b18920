"""Trainable backbone of the packed families, under the checkpoint's own parameter names."""

from dataclasses import astuple, replace

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.attention import blocks_of, relative_bias
from pipeline.models.layers.backbones import Backbone, ForwardRequest
from pipeline.models.layers.rotary import angles_of
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.families import packed_architecture
from pipeline.models.spec.pooling import TABLE_STATE, Segments, find_segments
from pipeline.models.spec.tensor_names import NAMES
from pipeline.models.trainable.dropout import Rates, dropout
from pipeline.models.trainable.packed_layer import (
    Layer,
    PackedTexts,
    ShiftedRMSNorm,
    add_module,
    new_norm,
)
from pipeline.text.tokens.budget import longest_first
from pipeline.text.tokens.tokens import Tokens


class PackedBackbone(Backbone):
    """Transformer of a packed family on the concatenated tokens of a call.

    There is no padding outside the attention.
    """

    def __init__(self, folder: EncoderFolder, weights: Checkpoint, rates: Rates) -> None:
        super().__init__()
        self.shape, self.names = packed_architecture(folder.config), NAMES[folder.family]
        self.width, self.depth = self.shape.width, self.shape.layers
        self._rates, self._path = rates, str(folder.path)
        self._initializer_std = float(folder.config.get("initializer_range", 0.02))
        self._layers = [self.names.layer.format(i=number).rstrip(".") for number in range(self.depth)]
        self._add_embeddings(self.shape.pad_id if self.shape.positions else folder.config.get("pad_token_id"))
        for number, name in enumerate(self._layers):
            add_module(self, name, Layer(self.shape, self.names, number, rates))
        if self.names.final_norm:
            add_module(self, self.names.final_norm, new_norm(self.shape, self.width))
        if self.names.relative_bias:
            buckets = int(folder.config.get("relative_attention_num_buckets", 32))
            table = nn.Embedding(buckets, self.shape.heads, device="meta")
            add_module(self, self.names.relative_bias, table)
        weights.check_used(name for name, _ in self.named_parameters())
        weights.fill(self)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return the wanted hidden states (T, d) by number, and the rows of each text in them."""
        order = longest_first(request.tokens.lengths)
        ids, positions, all_tokens = self._arrange(request, order)
        words = self.get_submodule(self.names.words)(ids)
        x = self._embed(words, positions, request.tokens.of_rows(order).types)
        if request.at_embedding is not None:
            x = request.at_embedding(x, all_tokens)
        states = {TABLE_STATE: words, 0: x}
        texts = self._texts(request.tokens.lengths[order], positions)
        for number, name in enumerate(self._layers[: max(0, *request.wanted)], start=1):
            x = self._run_layer(self.get_submodule(name), x, texts)
            if number == self.depth and self.names.final_norm:
                x = self.get_submodule(self.names.final_norm)(x)
            states[number] = x
        segments = all_tokens
        if request.skip or request.tokens.kept is not None:
            segments = self._find_segments(request.tokens, order, request.skip)
        return {number: states[number] for number in request.wanted}, segments

    @property
    def word_table(self) -> Tensor:
        """Word embeddings (vocabulary, d)."""
        return self.get_parameter(f"{self.names.words}.weight")

    @property
    def has_dropout(self) -> bool:
        """True if two passes over one text differ in train()."""
        return super().has_dropout or any(rate > 0 for rate in astuple(self._rates))

    @property
    def hidden_dropout(self) -> float:
        """Rate of dropout of the feed-forward layers in train()."""
        return max(self._rates.inner, self._rates.feed_forward)

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
            if isinstance(module, nn.LayerNorm | nn.RMSNorm) and module.weight is not None:
                nn.init.constant_(module.weight, 0.0 if isinstance(module, ShiftedRMSNorm) else 1.0)
            if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def _arrange(self, request: ForwardRequest, order: np.ndarray) -> tuple[Tensor, Tensor, Segments]:
        """Arrange the texts for the forward pass.

        Args:
            request: texts, and their positions unless these are 0, 1, 2 ...
            order: indices of the texts, longest first.

        Returns:
            (T,) token ids and (T,) position ids, longest text first; and the rows of each text in these, with
            the texts in the order of the call.
        """
        tokens, shape = request.tokens, self.shape
        ordered = tokens.of_rows(order)
        if request.positions is None:
            positions = shape.position_ids(ordered)
        else:
            indices = tokens.offsets[order][ordered.owners] + ordered.positions
            first = shape.pad_id + 1 if shape.counts_from_pad else 0
            positions = np.asarray(request.positions, np.int64)[indices] + first
        if shape.positions and (positions.min() < 0 or positions.max() >= shape.positions):
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

    def _texts(self, lengths: np.ndarray, positions: Tensor) -> PackedTexts:
        """Arrange texts of these lengths for attention. positions: (T,) position of each token."""
        blocks, bias = blocks_of(lengths, self._put, positions.device.type), None
        if self.names.relative_bias:
            table = self.get_parameter(f"{self.names.relative_bias}.weight")
            bias = relative_bias(table, blocks[0].longest)
        angles = {base: angles_of(positions, base, self.shape.head_width) for base in self.shape.bases}
        return PackedTexts(blocks, angles, bias)

    def _embed(self, words: Tensor, positions: Tensor, types: np.ndarray | None) -> Tensor:
        """Return the output of the embedding layer for (T, d) words, (T,) positions and (T,) token types."""
        names, shape = self.names, self.shape
        x = words if shape.word_scale == 1 else words * shape.word_scale
        if names.positions and shape.positions:
            x = x + self.get_submodule(names.positions)(positions)
        if names.token_types and shape.token_types:
            table = self.get_parameter(f"{names.token_types}.weight")
            x = x + (table[0] if types is None else F.embedding(self._put(types), table))
        if names.embedding_norm:
            x = self.get_submodule(names.embedding_norm)(x)
        return dropout(x, self._rates.embedding, self.training)

    def _add_embeddings(self, pad_id: int | None) -> None:
        """Add the modules of the embedding layer, without values. pad_id: row without a gradient, or None."""
        names, shape, width = self.names, self.shape, self.width
        add_module(self, names.words, nn.Embedding(shape.vocabulary, width, pad_id, device="meta"))
        if names.positions and shape.positions:
            first = shape.pad_id if shape.counts_from_pad else None
            add_module(self, names.positions, nn.Embedding(shape.positions, width, first, device="meta"))
        if names.token_types and shape.token_types:
            add_module(self, names.token_types, nn.Embedding(shape.token_types, width, device="meta"))
        if names.embedding_norm:
            add_module(self, names.embedding_norm, new_norm(shape, width))
