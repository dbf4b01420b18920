"""Encoders that can be trained: from token ids to vectors, with gradients to every parameter that is used."""

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.pooling import layers_of, pool, wide
from pipeline.models.layers.post_pooling import DenseModule, apply_tail, load_tail, mlp_name
from pipeline.models.layers.weights import Checkpoint, open_checkpoint
from pipeline.models.trainable.backbones import AtEmbedding, Backbone, ForwardRequest
from pipeline.models.trainable.heads import TanhHead
from pipeline.models.trainable.packed_backbone import PackedBackbone, rates_of
from pipeline.models.trainable.padded_backbone import PaddedBackbone
from pipeline.models.trainable.recurrent import load_recurrent
from pipeline.text.tokens.tokens import Tokens


class TrainableEncoder(nn.Module):
    """Backbone, pooling and the modules after it.

    The backbone's parameters have the names of the checkpoint, without its prefix. In eval() its vectors are
    those of `Encoder` on the folder; in train() every dropout of the architecture draws from torch's
    generator.
    """

    def __init__(self, folder: EncoderFolder, backbone: Backbone, mlp: DenseModule | None, skip: int) -> None:
        super().__init__()
        self.folder, self.dim, self._skip = folder, folder.dim, skip
        self.backbone, self.mlp = backbone, mlp
        self.tail = load_tail(folder)

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Encode texts: (n, dim) vectors.

        Args:
            tokens: n texts of at least one token each.
            positions: (tokens,) position of each token in its text, from 0; the family's offset is added.
                None: 0, 1, 2 ...
            at_embedding: change of the embedding layer's output before the first layer.
        """
        pooled = self.pooled(tokens, positions=positions, at_embedding=at_embedding)
        return apply_tail(self.tail, pooled, tokens.lengths)

    def pooled(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Return the (n, width) pooled states, before the modules that follow."""
        layers, parts = self.backbone.layers, []
        wanted = layers_of(self.folder.pooling, layers)
        states, where = self.backbone(ForwardRequest(tokens, wanted, self._skip, positions, at_embedding))
        for name in self.folder.pooling:
            part = pool(name, states, layers, where)
            parts.append(self.mlp(part) if name == "cls_mlp" and self.mlp is not None else part)
        return torch.cat(parts, dim=-1)

    def states(self, tokens: Tokens) -> Tensor:
        """Return the (tokens, width) last hidden states of all tokens, in their order, in float32."""
        plain, last = Tokens(tokens.ids, tokens.offsets, tokens.truncated), self.backbone.layers
        states, where = self.backbone(ForwardRequest(plain, {last}))
        return wide(states[last][where.indices])

    def draw(self) -> "TrainableEncoder":
        """Draw new weights for all modules from torch's generator. Returns the encoder itself."""
        self.backbone.draw()
        for layer in (self.mlp, *self.tail):
            if isinstance(layer, DenseModule):
                layer.draw()
        return self


def load_trainable(
    folder: EncoderFolder, *, dropout: float | None = None, fresh: bool = False
) -> TrainableEncoder:
    """Load the encoder of a folder, in float32 and in train().

    A cls_mlp pooling whose layer is not among the weights gets a new one from torch's generator.

    Args:
        folder: of the encoder.
        dropout: all dropout rates; None for those of config.json.
        fresh: draw new weights.

    Raises:
        ModelError: the folder has word vectors or several encoders, or cannot be used.
    """
    if folder.parts:
        raise ModelError(
            str(folder.path),
            "one encoder to train",
            f"{len(folder.parts)} side by side",
            f"name one of its parts: {folder.parts[0].path}",
        )
    if folder.family == "words":
        raise ModelError(str(folder.path), "an encoder to train", "word vectors", "name another encoder.path")
    weights = open_checkpoint(folder)
    backbone = _backbone(folder, weights, dropout)
    mlp = None
    if "cls_mlp" in folder.pooling:
        mlp = TanhHead(backbone.width)
        if (name := mlp_name(weights)) is not None:
            weights.fill(mlp.linear, f"{name}.")
    skip = 0 if folder.include_prompt or not folder.prompt else folder.tokenizer().prompt_tokens
    encoder = TrainableEncoder(folder, backbone, mlp, skip)
    return (encoder.draw() if fresh else encoder).train()


def _backbone(folder: EncoderFolder, weights: Checkpoint, dropout: float | None) -> Backbone:
    if folder.family == "recurrent":
        return load_recurrent(folder, weights, dropout)
    if folder.family == "other":
        return PaddedBackbone(folder, dropout)
    return PackedBackbone(folder, weights, rates_of(folder, dropout))
