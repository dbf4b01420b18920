"""Small recurrent encoders for tests, and their hidden states by plain equations, one text and one step at a
time.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import torch

from pipeline.models.classic.new_vocabulary import count_words
from pipeline.models.classic.recurrent import RecurrentBackbone, write_recurrent_folder
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings
from pipeline.settings.weights import RecurrentSettings
from tests.models.folders import LONG, TEXTS

SHAPES = {
    "gru": RecurrentSettings(cell="gru", width=24, directions=1, word_dim=20),
    "bigru": RecurrentSettings(cell="gru", width=17, directions=2, word_dim=20),
    "bilstm-max": RecurrentSettings(cell="lstm", width=24, directions=2, readout="max", word_dim=20),
    "deep": RecurrentSettings(cell="lstm", width=10, directions=2, layers=2, readout="mean", word_dim=12),
    "attentive": RecurrentSettings(cell="gru", width=9, directions=2, readout="attention", word_dim=12),
}


def word_counts() -> Counter[str]:
    """Count the words of the tests' texts."""
    return count_words([*TEXTS, LONG])


def recurrent_folder(path: Path, shape: str, **changes: object) -> EncoderFolder:
    """Open an encoder of that shape at `path`; write it if it does not exist."""
    if not path.exists():
        write_recurrent_folder(SHAPES[shape], word_counts(), path, seed=1)
    return open_folder(EncoderSettings.model_validate({"path": str(path), **changes}))


def by_equations(backbone: RecurrentBackbone, ids: np.ndarray) -> torch.Tensor:
    """Return the last hidden states (tokens, width) of one text, in float64."""
    x = backbone.word_table[torch.from_numpy(ids).long()].double()
    step = STEPS[backbone.shape.cell]
    for layer in backbone.directions:
        states_by_direction = []
        for number, direction in enumerate(layer):
            is_backward = number == 1
            weights = direction.input.weight.double(), direction.recurrent.double()
            bias = (
                torch.zeros(len(weights[0]), dtype=torch.float64)
                if direction.input.bias is None
                else direction.input.bias.double()
            )
            h = c = torch.zeros(direction.recurrent.shape[1], dtype=torch.float64)
            states = []
            for row in x.flip(0) if is_backward else x:
                h, c = step(row, h, c, *weights, bias)
                states.append(h)
            states_by_direction.append(torch.stack(states[::-1] if is_backward else states))
        x = torch.cat(states_by_direction, dim=1)
    return x


def gru_step(x, h, c, inputs, recurrent, bias):
    """Compute a step of Skip-Thought (Kiros et al. 2015), which has no bias. Returns h and c."""
    (w_r, w_z, w), (u_r, u_z, u) = inputs.chunk(3), recurrent.chunk(3)
    r = torch.sigmoid(w_r @ x + u_r @ h)
    z = torch.sigmoid(w_z @ x + u_z @ h)
    g = torch.tanh(w @ x + u @ (r * h))
    return (1 - z) * h + z * g, c


def lstm_step(x, h, c, inputs, recurrent, bias):
    """Compute a step of an LSTM whose gates are in the order i, f, o, g. Returns h and c."""
    i, f, o, g = (inputs @ x + bias + recurrent @ h).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


STEPS = {"gru": gru_step, "lstm": lstm_step}
