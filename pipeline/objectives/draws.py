"""Random numbers of objectives, and random words in proportion to their frequency."""

import numpy as np
import torch

from pipeline.errors import ModelError
from pipeline.models.folder.frequencies import FREQUENCIES, read_frequencies
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.objectives.batch import Peers

_MAX_SEED = (1 << 63) - 1  # torch draws int64
_POWER = 0.75  # exponent of the words' probabilities by which negatives are drawn (Mikolov et al. 2013)


def numpy_generator() -> np.random.Generator:
    """Return a generator that is seeded by torch's, so that a resumed training draws the same numbers."""
    return np.random.default_rng(int(torch.randint(_MAX_SEED, ()).item()))


def row_generators(rows: np.ndarray, peers: Peers, device: torch.device) -> list[np.random.Generator]:
    """Return a generator for each row, seeded by the first peer's torch generator and the row's number.

    A row's numbers thus do not depend on the rank that has it, nor on the other rows.

    Args:
        rows: (n,) row numbers in the data set.
        peers: ranks of the step, each of which must call this function.
        device: device of the tensors that the ranks exchange.
    """
    seeds = peers.gather(torch.randint(_MAX_SEED, (1,)).to(device))
    return [np.random.default_rng((int(seeds[0]), int(row))) for row in rows]


def vocabulary_counts(encoder: TrainableEncoder, remedy: str) -> np.ndarray:
    """Read how often each word of the encoder's vocabulary occurs: (vocabulary,) float64.

    Args:
        encoder: encoder whose folder has word counts.
        remedy: what to do if there are none, for the error message.

    Raises:
        ModelError: the encoder's folder has no word counts, or they contain no word of its vocabulary.
    """
    folder = encoder.folder
    file = folder.file(FREQUENCIES)
    if not file.is_file():
        raise ModelError(
            str(folder.path), f"word counts in {FREQUENCIES}, to draw words by", "no such file", remedy
        )
    counts = read_frequencies(file).of_vocabulary(folder.tokenizer().vocabulary(), lower=folder.lower)
    if not counts.any():
        raise ModelError(str(file), "counts of the encoder's words", "none of its words", remedy)
    return counts


def cumulative_noise(counts: np.ndarray) -> np.ndarray:
    """Return (vocabulary,) cumulative sums of the weights with which `draw_negatives` draws."""
    return np.cumsum(counts**_POWER)


def draw_negatives(cumulative: np.ndarray, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Draw word ids, int64 of shape `shape`, in proportion to the words' counts to the power of 0.75."""
    words = np.searchsorted(cumulative, rng.random(shape) * cumulative[-1], side="right")
    return np.minimum(words, len(cumulative) - 1)  # the product may round up to the last sum
