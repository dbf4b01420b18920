"""Decoder that reads a text word by word, given a vector (Kiros et al. 2015, section 2): a single layer."""

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.models.classic.recurrence import Cell, recurrence, repeat_per_word
from pipeline.models.classic.recurrent import Direction, Steps, permute_rows
from pipeline.models.layers.linear import TrainableLinear
from pipeline.models.layers.transfer import to_device


class ConditionalDecoder(nn.Module):
    """Recurrent layer whose gates also get the text's vector: the input of each is W x + C v instead of W x.

    For a GRU these are the equations of Skip-Thought's decoder, which adds C_r v, C_z v and C v inside the
    three activations.

    Args:
        cell: computes one step.
        inner: values of a word vector x.
        width: values of a state.
        condition: values of a vector v.
    """

    def __init__(self, cell: Cell, *, inner: int, width: int, condition: int) -> None:
        super().__init__()
        self.direction = Direction(cell, inner, width)
        self.condition = TrainableLinear(condition, cell.gates * width, bias=False)

    def forward(self, words: Tensor, vectors: Tensor, lengths: np.ndarray) -> Tensor:
        """Compute the states after each word, starting from zeros.

        Args:
            words: (T, inner) word vectors, text after text.
            vectors: (n, condition) vector of each text.
            lengths: (n,) words of each text, at least 1; T in total.

        Returns:
            (T, width)
        """
        cell, device = self.direction.cell, words.device
        steps = Steps.of(lengths, lambda values: to_device(values, device))
        (order, _), (inverse, _) = steps.orders, steps.inverses
        conditions = repeat_per_word(self.condition(vectors), to_device(lengths, device), len(words))
        inputs = self.direction.input(words) + conditions
        states = recurrence(cell, permute_rows(inputs, order, inverse), self.direction.recurrent, steps.sizes)
        return permute_rows(states, inverse, order)

    def draw(self) -> "ConditionalDecoder":
        """Draw new weights from torch's generator, as for a recurrent encoder, and return the decoder."""
        self.direction.draw()
        with torch.no_grad():
            for gate in self.condition.weight.split(self.direction.width):
                nn.init.xavier_uniform_(gate)
        return self
