"""Trainable encoders: from token ids to vectors, with gradients of every parameter that is used."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.classic.convolutional import ConvolutionalBackbone
from pipeline.models.classic.dan import DanBackbone
from pipeline.models.classic.paragraph import ParagraphBackbone
from pipeline.models.classic.recurrent import RecurrentBackbone
from pipeline.models.classic.word_table import WordTable
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.backbones import AtEmbedding, Backbone, ForwardRequest
from pipeline.models.layers.ngrams import load_ngrams
from pipeline.models.layers.post_pooling import DenseModule, TanhHead, apply_tail, load_tail, mlp_name
from pipeline.models.layers.weights import Checkpoint, open_checkpoint
from pipeline.models.spec.pooling import NGRAMS, Segments, at_least_float32, layers_of, pool
from pipeline.models.trainable.dropout import rates_of
from pipeline.models.trainable.packed_backbone import PackedBackbone
from pipeline.models.trainable.padded_backbone import PaddedBackbone
from pipeline.text.tokens.tokens import Tokens

_LOAD_OWN: Mapping[str, Callable[[EncoderFolder, Checkpoint, float | None], Backbone]] = {
    "words": WordTable.load,
    "static": WordTable.load,
    "recurrent": RecurrentBackbone.load,
    "convolutional": ConvolutionalBackbone.load,
    "dan": DanBackbone.load,
    "paragraph": ParagraphBackbone.load,
}
"""for each family of this project, the function that loads its backbone from the folder, the weights and the
dropout rate"""


class TrainableEncoder(nn.Module):
    """Backbone, pooling and the modules after it.

    The backbone's parameters have the names of the checkpoint, without its prefix. In eval() the
    encoder gives the vectors of the folder's `Encoder`; in train() all dropout layers draw from torch's
    generator.

    Args:
        folder: folder of the encoder.
        backbone: model without pooling.
        mlp: layer of the pooling cls_mlp; None for other poolings.
        skip: number of tokens at the start of each text that are not pooled, because they are the prompt.
    """

    def __init__(self, folder: EncoderFolder, backbone: Backbone, mlp: DenseModule | None, skip: int) -> None:
        super().__init__()
        self.folder, self.dim, self._skip = folder, folder.dim, skip
        self.backbone, self.mlp = backbone, mlp
        self.ngrams = load_ngrams(folder, backbone.width)
        self.tail = load_tail(folder)

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Encode texts: (n, dim) vectors, zero for a text without a token.

        Args:
            tokens: n texts. Only word vectors allow a text without tokens, whose words are all unknown.
            positions: (tokens,) position of each token in its text, from 0; the family's offset is added.
                None: 0, 1, 2 ...
            at_embedding: change of the embedding layer's output before the first layer.
        """
        has_tokens = tokens.lengths > 0
        if not has_tokens.all():
            return self._encode_known(tokens, has_tokens, positions, at_embedding)
        pooled = self.pool_states(tokens, positions=positions, at_embedding=at_embedding)
        return apply_tail(self.tail, pooled, tokens.lengths)

    def _encode_known(
        self,
        tokens: Tokens,
        has_tokens: np.ndarray,
        positions: np.ndarray | None,
        at_embedding: AtEmbedding | None,
    ) -> Tensor:
        """Encode the texts that have a token, and give zero vectors to the others: (n, dim)."""
        rows = np.flatnonzero(has_tokens)
        table = self.backbone.word_table
        zeros = table.new_zeros(len(tokens), self.dim)
        if not len(rows):
            return zeros
        known = self(tokens.of_rows(rows), positions=positions, at_embedding=at_embedding)
        return zeros.to(known.dtype).index_copy(0, torch.from_numpy(rows).to(table.device), known)

    def pool_states(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Compute the (n, width) pooled states, the input of the modules after the pooling."""
        wanted = layers_of(self.folder.pooling, self.backbone.depth)
        states, segments = self.backbone(ForwardRequest(tokens, wanted, self._skip, positions, at_embedding))
        return torch.cat([self._pool(name, states, segments) for name in self.folder.pooling], dim=-1)

    def _pool(self, name: str, states: Mapping[int, Tensor], segments: Segments) -> Tensor:
        if name == NGRAMS and self.ngrams is not None:
            return self.ngrams(states[self.backbone.depth], segments)
        pooled = pool(name, states, self.backbone.depth, segments)
        return self.mlp(pooled) if name == "cls_mlp" and self.mlp is not None else pooled

    def ngram_features(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the features that the pooling ngrams averages. The folder must have this pooling.

        Returns:
            (pooled tokens, width) features, text after text, and (n,) number of pooled tokens of each text.
        """
        assert self.ngrams is not None, "the objective checks the pooling"
        last = self.backbone.depth
        states, segments = self.backbone(ForwardRequest(tokens, {last}, self._skip, positions, at_embedding))
        return self.ngrams.features(states[last], segments), segments.counts

    def states(self, tokens: Tokens) -> Tensor:
        """Compute the last hidden states of all tokens, in their order: (tokens, width) float32."""
        last = self.backbone.depth  # hidden state i is layer i's output, so the last one's index is `depth`
        # without `kept`, which would leave out the tokens that are not pooled
        all_tokens = Tokens(tokens.ids, tokens.offsets, tokens.truncated, types=tokens.types)
        states, segments = self.backbone(ForwardRequest(all_tokens, {last}))
        return at_least_float32(states[last][segments.indices])

    def draw(self) -> "TrainableEncoder":
        """Draw new weights for all modules from torch's generator. Returns the encoder itself."""
        self.backbone.draw()
        for layer in (self.mlp, *self.tail):
            if isinstance(layer, DenseModule):
                layer.draw()
        if self.ngrams is not None:
            self.ngrams.draw()
        return self


def load_trainable(
    folder: EncoderFolder, *, dropout: float | None = None, fresh: bool = False
) -> TrainableEncoder:
    """Load the encoder of a folder, in float32 and in train().

    If the pooling is cls_mlp or ngrams and the folder has no such layers, new ones are drawn from torch's
    generator.

    Args:
        folder: the encoder's folder.
        dropout: all dropout rates; None for the rates of config.json.
        fresh: draw new weights instead of loading the folder's.

    Raises:
        ModelError: the folder has several encoders, or cannot be used.
    """
    if folder.parts:
        raise ModelError(
            str(folder.path),
            "one encoder to train",
            f"{len(folder.parts)} concatenated encoders",
            f"name one of its parts: {folder.parts[0].path}",
        )
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
    if (load := _LOAD_OWN.get(folder.family)) is not None:
        return load(folder, weights, dropout)
    if folder.family == "other":
        return PaddedBackbone(folder, dropout)
    return PackedBackbone(folder, weights, rates_of(folder, dropout))
