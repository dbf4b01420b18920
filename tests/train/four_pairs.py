"""Four pairs of points, one matrix, unit vectors, temperature 0.5: loss and gradients by hand in float64."""

from pipeline.objectives import NO_PEERS, Batch, Peers
from pipeline.objectives.supervised import Supervised
from tests.objectives.tiny import Table, batch_of

NEAR = 1e-6
X = [[1, 0], [0.5, 1], [-1, 0.5], [0.2, -1]]
Y = [[1, 0.1], [0.4, 1.2], [-0.8, 0.6], [0, -1]]
WEIGHT = [[1, 0.2], [-0.3, 0.8]]
LOSS = 0.325431
GRADIENT = [[0.028625, -0.055471], [-0.059860, -0.044361]]
HALVES = [[0.053182, 0.201146], [0.247166, -0.024077]]
"""gradient if each half has its own negatives only; the mean of their losses is 0.146462"""
DETACHED = [[0.043093, 0.071606], [0.078338, -0.042391]]
"""gradient if candidates of the other half have none; the losses of the halves are 0.401016 and 0.249846"""


def objective_of_four() -> Supervised:
    return Supervised(Table([*X, *Y], WEIGHT), temperature=0.5, head="none")


def four_pairs(start: int = 0, end: int = 4, peers: Peers = NO_PEERS) -> Batch:
    """Return pairs start to end - 1; the table's row of a text is the number of its only character."""
    return batch_of(
        {
            "anchor": [chr(row) for row in range(start, end)],
            "positive": [chr(4 + row) for row in range(start, end)],
        },
        peers,
    )
