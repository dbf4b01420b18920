"""Pooling of n-gram features (IS-BERT: Zhang et al. 2020, section 3.1).

The features of token t are relu(W [h_(t-r); ...; h_(t+r)] + b) for windows of 1, 3 and 5 tokens side by side.
The vector of a text is the mean of its tokens' features.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.linear import TrainableLinear
from pipeline.models.layers.weights import open_files
from pipeline.models.spec.pooling import NGRAMS, POOLINGS, Segments, at_least_float32

_REACHES = (0, 1, 2)  # tokens on each side, in windows of 1, 3 and 5


class NgramPooling(nn.Module):
    """Convolutions over the last hidden states, a ReLU, and the mean over tokens.

    The width of a state is divided evenly among the windows: 256 channels each for BERT-base, as in the
    published program.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        windows = len(_REACHES)
        self.convolutions = nn.ModuleList(
            TrainableLinear((2 * reach + 1) * width, (width + windows - 1 - reach) // windows)
            for reach in _REACHES
        )

    def forward(self, states: Tensor, segments: Segments) -> Tensor:
        """Return the (n, d) vectors of n texts for the states (tokens, d) of a buffer."""
        features = self.features(states, segments)
        indices = torch.arange(len(features), device=features.device)
        return POOLINGS[NGRAMS].reduce(features, replace(segments, indices=indices))

    def features(self, states: Tensor, segments: Segments) -> Tensor:
        """Return the features (tokens, d) of the pooled tokens, text after text.

        Windows leave out tokens that are not pooled.
        """
        x, counts = at_least_float32(states[segments.indices]), segments.counts
        texts = torch.arange(len(counts), device=x.device)
        owners = torch.repeat_interleave(texts, counts, output_size=len(x))
        # the product has as many rows as the buffer, so that the bits of a row do not depend on the other
        # texts
        missing = len(states) - len(x)
        x, owners = F.pad(x, (0, 0, 0, missing)), F.pad(owners, (0, missing), value=len(counts))
        outputs = [
            layer(neighbourhoods(x, owners, reach))
            for layer, reach in zip(self._layers(), _REACHES, strict=True)
        ]
        return F.relu(torch.cat(outputs, dim=1))[: len(segments.indices)]

    def draw(self) -> None:
        """Draw new weights from torch's generator, as torch.nn.Conv1d does."""
        for layer in self._layers():
            layer.reset_parameters()  # uniform up to 1 / sqrt(inputs)

    def _layers(self) -> Iterable[TrainableLinear]:
        return cast(Iterable[TrainableLinear], self.convolutions)


def neighbourhoods(x: Tensor, owners: Tensor, reach: int) -> Tensor:
    """Concatenate the tokens of the window around each token: (T, (2 * reach + 1) * d) for x (T, d).

    Tokens of other texts are zero, as the padding of a convolution, so that texts do not change each other.

    Args:
        x: states, text after text.
        owners: (T,) number of each token's text, at least 0.
        reach: tokens on each side of the window.
    """
    padded, texts = F.pad(x, (0, 0, reach, reach)), F.pad(owners, (reach, reach), value=-1)
    windows = (slice(start, start + len(x)) for start in range(2 * reach + 1))
    columns = [padded[rows].masked_fill((texts[rows] != owners)[:, None], 0.0) for rows in windows]
    return torch.cat(columns, dim=1)


def load_ngrams(folder: EncoderFolder, width: int, *, trained: bool = False) -> NgramPooling | None:
    """Load the layers of the pooling ngrams; None for other poolings.

    If the folder has no such layers, new ones are drawn from torch's generator.

    Args:
        folder: the encoder's folder.
        width: values of a hidden state.
        trained: require trained layers: do not draw new ones.

    Raises:
        ModelError: the folder has no trained layers although they are required, or they do not fit.
    """
    if NGRAMS not in folder.pooling:
        return None
    if folder.pooling_weights is None:
        if not trained:
            return NgramPooling(width)
        raise ModelError(
            "encoder.pooling ngrams",
            "the trained convolutions over the hidden states",
            f"none in {folder.path}",
            "train them with the objective is_bert, or choose another pooling",
        )
    file = folder.file(folder.pooling_weights)
    with torch.device("meta"):
        pooling = NgramPooling(width)
    open_files(str(file), [file]).fill(pooling)
    return pooling
