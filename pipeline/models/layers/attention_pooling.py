"""Attention pooling over the words of a text (Conneau et al. 2017, section 3.2.4).

a = softmax(w . tanh(W h + b)) over the words, for several context vectors w; the weighted sums are
concatenated.
"""

import torch
from torch import Tensor, nn

from pipeline.models.layers.linear import TrainableLinear


class AttentionPooling(nn.Module):
    """Attention pooling layer: W and b in `inner`, each context vector w a row of `contexts`."""

    def __init__(self, size: int, contexts: int) -> None:
        super().__init__()
        self.inner, self.contexts = TrainableLinear(size, size), TrainableLinear(size, contexts, bias=False)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        """Weight the states such that mean pooling, which follows, gives the attention-weighted sum.

        Args:
            x: (T, size) states, text after text.
            counts: (n,) words of each text.

        Returns:
            (T, contexts * size)
        """
        scores = self.contexts(torch.tanh(self.inner(x))).to(x.dtype)
        highest = repeat_per_word(max_per_text(scores, counts), counts, len(x))
        return weight_states(x, torch.exp(scores - highest), counts)

    def draw(self) -> None:
        """Draw new weights from torch's generator: uniform up to 1 / sqrt(size), as torch does."""
        bound = self.contexts.in_features**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)


def weight_states(x: Tensor, energies: Tensor, counts: Tensor) -> Tensor:
    """Multiply each state by its attention weight and by the number of words of its text.

    The mean of the result over a text is therefore the attention-weighted sum.

    Args:
        x: (T, size) states, text after text.
        energies: (T, contexts) exponentials of the scores; they are normalized within each text.
        counts: (n,) words of each text.

    Returns:
        (T, contexts * size)
    """
    # sums run word after word, so that a text's bits do not depend on the others
    sums = torch.segment_reduce(energies, "sum", lengths=counts, axis=0, unsafe=True)
    weights = (
        energies / repeat_per_word(sums, counts, len(x)) * repeat_per_word(counts, counts, len(x))[:, None]
    )
    return (weights[:, :, None] * x[:, None]).flatten(1)


def max_per_text(scores: Tensor, counts: Tensor) -> Tensor:
    """Highest score within each text, (n, contexts), without gradient; its subtraction avoids overflow."""
    return torch.segment_reduce(scores.detach(), "max", lengths=counts, axis=0, unsafe=True)


def repeat_per_word(values: Tensor, counts: Tensor, words: int) -> Tensor:
    """Repeat the row of each text for each of its words: (n, ...) -> (words, ...)."""
    return torch.repeat_interleave(values, counts, dim=0, output_size=words)
