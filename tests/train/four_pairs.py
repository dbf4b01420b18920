"""Loss and gradients of four pairs of points by hand, in float64.

The encoder multiplies a point by one matrix and normalizes the result. The temperature is 0.5.
"""

from pipeline.objectives import NO_PEERS, Batch, Peers
from pipeline.objectives.supervised import Supervised
from tests.objectives.tiny import Table, batch_of

TOLERANCE = 1e-6
ANCHORS = [[1, 0], [0.5, 1], [-1, 0.5], [0.2, -1]]
POSITIVES = [[1, 0.1], [0.4, 1.2], [-0.8, 0.6], [0, -1]]
WEIGHT = [[1, 0.2], [-0.3, 0.8]]
LOSS = 0.325431
LOSSES_OF_HALVES = [0.401016, 0.249846]  # each half with the candidates of both
GRADIENT = [[0.028625, -0.055471], [-0.059860, -0.044361]]
# If each half has its own candidates only: the mean of the two losses, and its gradient.
LOSS_OF_OWN_CANDIDATES = 0.146462
GRADIENT_OF_OWN_CANDIDATES = [[0.053182, 0.201146], [0.247166, -0.024077]]
# If the candidates of the other half have no gradient; the losses are not changed.
GRADIENT_OF_DETACHED_CANDIDATES = [[0.043093, 0.071606], [0.078338, -0.042391]]


def objective_of_four() -> Supervised:
    return Supervised(Table([*ANCHORS, *POSITIVES], WEIGHT), temperature=0.5, head="none")


def four_pairs(start: int = 0, end: int = 4, peers: Peers = NO_PEERS) -> Batch:
    """Return the pairs from `start` up to `end`, not included; a text is the character of its table row."""
    return batch_of(
        {
            "anchor": [chr(row) for row in range(start, end)],
            "positive": [chr(4 + row) for row in range(start, end)],
        },
        peers,
    )
