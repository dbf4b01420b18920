"""IS-BERT (Zhang et al. 2020): a sentence's vector shares information with the sentence's own n-grams."""

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.losses.information import jensen_shannon
from pipeline.models.folder.modules import Normalization
from pipeline.models.layers.backbones import AtEmbedding
from pipeline.models.spec.pooling import NGRAMS
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, View
from pipeline.text.tokens.tokens import Tokens


@OBJECTIVES.register("is_bert")
class IsBert(Objective):
    """Jensen-Shannon estimate of the mutual information of a sentence's vector and its tokens' features.

    Requires an encoder with the pooling ngrams: the features are convolutions over windows of 1, 3 and 5
    tokens of the last hidden states (new ones if the encoder has none), and the vector is the mean of the
    features. The loss is low if a token's features have a large inner product with the vector of their own
    sentence, and small ones with vectors of other sentences. As in the paper, the loss is a sum over the
    tokens of a sentence; the published program divides it by the mean number of tokens in the batch. `simcse`
    and `consert` compare vectors of whole texts, of any pooling.
    """

    columns = ("text",)

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder)
        folder = self.encoder.folder
        if folder.pooling != (NGRAMS,) or any(module != Normalization() for module in folder.tail):
            modules = "".join(f" and {type(module).__name__}" for module in folder.tail)
            raise ModelError(
                "encoder.pooling",
                "ngrams alone for is_bert, without a module after it that changes directions",
                "+".join(folder.pooling) + modules,
                "set encoder.pooling=ngrams, and start from an encoder without such modules",
            )

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        return [View(_TokenFeatures(self.encoder, int(tokens.lengths.max())), tokens)]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        features, is_token = self._unpadded(reps)
        return Loss.of(
            jensen_shannon=jensen_shannon(
                features[is_token],
                is_token.sum(dim=1),
                batch.peers.gather(_means(features, is_token)),
                offset=batch.offset,
                excluded=batch.false_negative_mask("text", features.device),
            )
        )

    def vectors(self, reps: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
        return (_means(*self._unpadded(reps)),)

    def _unpadded(self, reps: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the features (n, tokens, dim) of the view, and (n, tokens) bool: False for padding."""
        outputs = reps[0].unflatten(1, (-1, self.dim + 1))
        return outputs[..., :-1], outputs[..., -1] > 0


class _TokenFeatures(nn.Module):
    """Encoder of a view: the features of each text's tokens, padded to one length, (n, length * (dim + 1)).

    The last of the dim + 1 values is 1 for a token and 0 for padding.
    """

    def __init__(self, encoder: TrainableEncoder, length: int) -> None:
        super().__init__()
        self.encoder, self.dim, self.length = encoder, length * (encoder.dim + 1), length

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Encode n texts of at most `length` tokens. See `View` for positions and at_embedding."""
        features, counts = self.encoder.ngram_features(tokens, positions=positions, at_embedding=at_embedding)
        texts = F.pad(features, (0, 1), value=1.0).split(counts.tolist())
        padded = nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
        return F.pad(padded, (0, 0, 0, self.length - padded.shape[1])).flatten(1)


def _means(features: Tensor, is_token: Tensor) -> Tensor:
    """Return the vectors (n, dim): means of the features (n, tokens, dim), which are 0 for padding."""
    return features.sum(dim=1) / is_token.sum(dim=1, keepdim=True)
