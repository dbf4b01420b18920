"""An encoder that can be trained: token ids in, vectors out, gradients to every parameter that takes part."""

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.pooling import layers_of, pool, wide
from pipeline.models.layers.post_pooling import DenseModule, apply_tail, load_tail, mlp_name
from pipeline.models.layers.weights import Checkpoint, open_checkpoint
from pipeline.models.trainable.backbones import (
    AtEmbedding,
    Backbone,
    ForwardRequest,
    PackedBackbone,
    PaddedBackbone,
    rates_of,
)
from pipeline.models.trainable.heads import TanhHead
from pipeline.models.trainable.recurrent import load_recurrent
from pipeline.text.tokens.tokens import Tokens


class TrainableEncoder(nn.Module):
    """Backbone, pooling and what follows it.

    The backbone's parameters have the names of the checkpoint, without its prefix.

    In eval() its vectors are those of `Encoder` on the folder; in train() every dropout site of the
    architecture draws from torch's generator, for each row anew.
    """

    def __init__(self, folder: EncoderFolder, backbone: Backbone, mlp: DenseModule | None, skip: int) -> None:
        super().__init__()
        self.folder, self.dim, self._skip = folder, folder.dim, skip
        self.backbone, self.mlp = backbone, mlp
        self.tail = load_tail(folder)

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """(n, dim) vectors of texts of at least one token each; all tokens of the call are one buffer.

        positions (tokens,): the place that each token believes to have in its text, from 0 (the family's
        offset is added); None: the one it has.
        at_embedding: changes the embedding layer's output (tokens, d), given with where each text's tokens
            lie in it, on its way to the first layer.
        """
        return apply_tail(
            self.tail, self.pooled(tokens, positions=positions, at_embedding=at_embedding), tokens.lengths
        )

    def pooled(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """(n, width) what goes into the tail."""
        pooling, layers = self.folder.pooling, self.backbone.layers
        request = ForwardRequest(tokens, layers_of(pooling, layers), self._skip, positions, at_embedding)
        states, where = self.backbone(request)
        return torch.cat([self._headed(name, pool(name, states, layers, where)) for name in pooling], dim=-1)

    def states(self, tokens: Tokens) -> Tensor:
        """(tokens, width) last hidden states of all tokens, in their order, in float32."""
        states, where = self.backbone(
            ForwardRequest(Tokens(tokens.ids, tokens.offsets, tokens.truncated), {self.backbone.layers})
        )
        return wide(states[self.backbone.layers][where.indices])

    def draw(self) -> "TrainableEncoder":
        """Itself with new weights everywhere, from torch's generator: those of an architecture that nothing
        has trained yet.
        """
        self.backbone.draw()
        for layer in (self.mlp, *self.tail):
            if isinstance(layer, DenseModule):
                layer.draw()
        return self

    def checkpoint_layers(self, wanted: bool = True) -> None:
        """Whether layers compute their inner values anew in the backward pass, under equal dropout: a third
        more work for a fraction of the memory.
        """
        self.backbone.checkpointing = wanted

    def _headed(self, name: str, pooled: Tensor) -> Tensor:
        return self.mlp(pooled) if name == "cls_mlp" and self.mlp is not None else pooled


def load_trainable(
    folder: EncoderFolder,
    *,
    dropout: float | None = None,
    fresh: bool = False,
    device: torch.device | str = "cpu",
) -> TrainableEncoder:
    """The encoder of a folder, in float32 and in train(). dropout: the rate in all places of the family;
    None: as config.json says. fresh: with newly drawn weights.

    A cls_mlp pooling whose layer is not among the weights gets a new one from torch's generator. ModelError
    for word vectors, and where the folder cannot be used.
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
    mlp = _head(weights, backbone.width) if "cls_mlp" in folder.pooling else None
    encoder = TrainableEncoder(folder, backbone, mlp, _skipped(folder))
    return (encoder.draw() if fresh else encoder).to(device).train()


def _backbone(folder: EncoderFolder, weights: Checkpoint, dropout: float | None) -> Backbone:
    if folder.family == "recurrent":
        return load_recurrent(folder, weights, dropout)
    return (
        PaddedBackbone(folder, dropout)
        if folder.family == "other"
        else PackedBackbone(folder, weights, rates_of(folder, dropout))
    )


def _head(weights: Checkpoint, width: int) -> DenseModule:
    """The checkpoint's own layer, or a new one."""
    head, name = TanhHead(width), mlp_name(weights)
    if name is not None:
        weights.fill(head.linear, f"{name}.")
    return head


def _skipped(folder: EncoderFolder) -> int:
    """Leading tokens that are not pooled: those of the prompt, where the folder leaves it out."""
    if folder.include_prompt or not folder.prompt:
        return 0
    return folder.tokenizer().prompt_tokens
