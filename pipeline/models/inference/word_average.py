"""Backbone of encoders that average vectors of words or tokens, which SIF (Arora et al. 2017) may weight."""

from typing import cast

import numpy as np
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.frequencies import Frequencies, read_frequencies
from pipeline.models.inference.model import Model
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.token_table import TokenVectors, load_table
from pipeline.models.layers.weights import Checkpoint
from pipeline.text.tokens.tokens import Tokenizer, Tokens


class BagModel(Model):
    """Table of vectors of words or tokens on a device, in float32 regardless of `encode.dtype`.

    On a CPU the file of the table is mapped into memory, so that the workers of a machine share it.
    """

    def __init__(
        self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic, tokenizer: Tokenizer
    ) -> None:
        self.width, self.layers = int(folder.config["hidden_size"]), 0
        self.device = arithmetic.torch_device
        self._table = load_table(folder, checkpoint, tokenizer).to(arithmetic.torch_device)
        averaging = folder.averaging
        if averaging.sif is not None and averaging.counts is not None:
            frequencies = read_frequencies(averaging.counts)
            if frequencies.are_tokens:
                raise ModelError(
                    f"encoder.frequencies {averaging.counts}",
                    "counts of words (columns word and count), for encoder.sif",
                    "counts of tokens",
                    "count the corpus with these word vectors as encoder.path",
                )
            weights = sif_weights(tokenizer, frequencies, averaging.sif, lower=folder.lower)
            self._table = self._table._replace(weights=self.put(weights.astype(np.float32)))

    def forward(
        self, tokens: Tokens, wanted: set[int], max_tokens: int
    ) -> tuple[dict[int, Tensor], np.ndarray]:
        """Look up the weighted vectors (tokens, d); without layers, all hidden states are the same."""
        # a pooling indexes the vectors, of long texts in blocks: those of a million tokens take gigabytes
        x = cast(Tensor, TokenVectors(self._table, self.put(tokens.ids)))
        return dict.fromkeys(wanted, x), tokens.offsets[:-1]


def sif_weights(tokenizer: Tokenizer, frequencies: Frequencies, a: float, *, lower: bool) -> np.ndarray:
    """SIF weights a / (a + p) of the vocabulary, p the relative frequency (Arora et al. 2017, eq. 2).

    Args:
        tokenizer: has the vocabulary.
        frequencies: word counts.
        a: smoothing parameter, > 0.
        lower: the vocabulary is lowercase, so counts of spellings that differ in case are summed.

    Returns:
        (vocabulary,) float64; 1 for words without a count.
    """
    counts = frequencies.of_vocabulary(tokenizer.vocabulary(), lower=lower)
    return np.asarray(a / (a + counts / frequencies.counts.sum()))
