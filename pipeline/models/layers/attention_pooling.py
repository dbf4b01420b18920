"""A readout that weighs a text's words: a = softmax(w . tanh(W h + b)) over them, for several vectors w, whose weighted sums stand side by side (Conneau et al. 2017,
section 3.2.4).
"""

import torch
from torch import Tensor, nn

from pipeline.models.layers.linear import TrainableLinear


class Attentive(nn.Module):
    """The readout's weights, W and b in `inner`, one w a row in `contexts`."""

    def __init__(self, size: int, contexts: int) -> None:
        super().__init__()
        self.inner, self.contexts = TrainableLinear(size, size), TrainableLinear(size, contexts, bias=False)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        """(T, contexts * size) for states x (T, size), text after text, of so many words each: what its mean over a text is the weighted sums of."""
        scores = self.contexts(torch.tanh(self.inner(x))).to(x.dtype)
        return weighted(x, torch.exp(scores - spread(highest(scores, counts), counts, len(x))), counts)

    def draw(self) -> None:
        """New weights from torch's generator: uniform up to 1 / sqrt(size), as torch's."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.contexts.in_features**-0.5), self.contexts.in_features**-0.5)


def weighted(x: Tensor, energies: Tensor, counts: Tensor) -> Tensor:
    """(T, contexts * size): each state times its share of its text's energies (T, contexts), and times the text's words."""
    sums = torch.segment_reduce(
        energies, "sum", lengths=counts, axis=0, unsafe=True
    )  # word after word: its bits are the text's own
    shares = energies / spread(sums, counts, len(x)) * spread(counts, counts, len(x))[:, None]
    return (shares[:, :, None] * x[:, None]).flatten(1)


def highest(scores: Tensor, counts: Tensor) -> Tensor:
    """(n, contexts) highest score within each text, without a gradient: it is taken off, so that no exponential is too large."""
    return torch.segment_reduce(scores.detach(), "max", lengths=counts, axis=0, unsafe=True)


def spread(values: Tensor, counts: Tensor, words: int) -> Tensor:
    """A row for each word of rows for each text."""
    return torch.repeat_interleave(values, counts, dim=0, output_size=words)
