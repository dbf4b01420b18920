"""Average word vectors: the backbone without layers. SIF weights (Arora et al. 2017) are those of its words."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.models.folder.folder import EncoderFolder
from pipeline.models.folder.frequencies import Frequencies, read_frequencies
from pipeline.models.folder.word_vectors import TABLE
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.pooling import Segments, segments
from pipeline.models.layers.weights import Checkpoint
from pipeline.text.tokens.budget import plan_buffers
from pipeline.text.tokens.tokens import Tokenizer, Tokens


class BagModel:
    """A table of word vectors on a device; in float32 whatever `encode.dtype` says, since there is nothing to multiply. On a CPU the table stays in its file,
    mapped: workers of one machine share it.
    """

    def __init__(
        self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic, tokenizer: Tokenizer
    ) -> None:
        self.width, self.layers = int(folder.config["hidden_size"]), 0
        self._device = arithmetic.place
        self._table = checkpoint.tensor(TABLE, (int(folder.config["vocab_size"]), self.width)).to(
            self._device
        )
        self._weights: Tensor | None = None
        averages = folder.averages
        if averages.sif is not None and averages.counts is not None:
            weights = sif_weights(
                tokenizer, read_frequencies(averages.counts), averages.sif, lower=folder.lower
            )
            self._weights = torch.from_numpy(weights.astype(np.float32)).to(self._device)

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Rows of each pass."""
        return plan_buffers(lengths, max_tokens)

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """The words' vectors (tokens, d), weighted, under every wanted number, and where the texts `rows` lie in them."""
        part = tokens.of_rows(rows)
        ids = torch.from_numpy(part.ids).to(self._device)
        x = F.embedding(ids, self._table)
        if self._weights is not None:
            x = x * self._weights[ids][:, None]
        return dict.fromkeys(wanted, x), segments(part.offsets[:-1], part.lengths, skip, self._put, part.kept)

    def _put(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def sif_weights(tokenizer: Tokenizer, frequencies: Frequencies, a: float, *, lower: bool) -> np.ndarray:
    """(vocabulary,) float64: a / (a + p) of every word, p its share of all counts; 1 for a word without a count. lower: counts of spellings that differ only in
    case are added, as the vocabulary has none of them apart. Arora et al. 2017, eq. 2.
    """
    vocabulary = tokenizer.vocabulary()
    counts = np.zeros(len(vocabulary))
    for words, numbers in frequencies.batches():
        places = [vocabulary.get(word.lower() if lower else word, -1) for word in words]
        known = np.array(places) >= 0
        np.add.at(counts, np.array(places)[known], numbers[known])
    return np.asarray(a / (a + counts / frequencies.total))
