"""Hard negatives equal those that the same rules give for one pair at a time."""

import numpy as np
import pytest

from pipeline.index.measure.truth import NO_NEIGHBOUR, Neighbours
from pipeline.index.search.negatives import pick_negatives, without_positives
from pipeline.settings.training import MineSettings


def random_neighbours(pairs: int = 200, k: int = 12) -> tuple[Neighbours, np.ndarray]:
    """Make random neighbours, best first, some of them NO_NEIGHBOUR, and cosines of the positives."""
    random = np.random.default_rng(0)
    addresses = np.stack([random.permutation(1_000)[:k] for _ in range(pairs)]) + (np.int64(3) << 32)
    addresses[random.random(addresses.shape) < 0.2] = NO_NEIGHBOUR
    return Neighbours(
        addresses, -np.sort(-random.random((pairs, k)).astype(np.float32), axis=1)
    ), random.random(pairs).astype(np.float32)


def candidates_of_pairs(found: Neighbours, positives: np.ndarray, settings: MineSettings) -> list[list[int]]:
    """List the candidates of each pair, one pair at a time."""
    candidates = []
    for addresses, scores, positive in zip(found.addresses.tolist(), found.scores, positives, strict=True):
        ranked = [
            (address, score)
            for address, score in zip(addresses, scores, strict=True)
            if address != NO_NEIGHBOUR
        ][settings.skip : settings.neighbours]
        below = [
            pair
            for pair in ranked
            if settings.margin is None or pair[1] <= positive - np.float32(settings.margin)
        ]
        candidates.append(
            [
                address
                for address, score in below
                if settings.most is None or score <= np.float32(settings.most)
            ]
        )
    return candidates


@pytest.mark.parametrize(
    "settings",
    [
        MineSettings(),
        MineSettings(margin=None),
        MineSettings(skip=2, neighbours=5),
        MineSettings(most=0.5, margin=None, negatives=3),
        MineSettings(margin=-0.2, negatives=20),
    ],
)
def test_the_nearest_candidates_that_pass_every_rule_are_chosen(settings: MineSettings):
    found, positives = random_neighbours()
    expected = [
        (row + [NO_NEIGHBOUR] * settings.negatives)[: settings.negatives]
        for row in candidates_of_pairs(found, positives, settings)
    ]
    np.testing.assert_array_equal(
        pick_negatives(found, positives, np.arange(len(positives)), settings, seed=0), expected
    )


def test_random_candidates_are_equally_likely_and_independent_of_other_pairs():
    settings = MineSettings(pick="random", margin=None, negatives=2, neighbours=4)
    found, positives = random_neighbours(4_000)
    pairs = np.arange(len(positives)) + 77
    picked = pick_negatives(found, positives, pairs, settings, seed=5)
    ranks = []
    for row, candidates in zip(picked.tolist(), candidates_of_pairs(found, positives, settings), strict=True):
        assert len(set(row)) == 2
        ranks += [candidates.index(address) for address in row]
    np.testing.assert_allclose(np.bincount(ranks) / len(ranks), 0.25, atol=0.02)  # three standard deviations
    half = slice(1, None, 2)
    np.testing.assert_array_equal(
        pick_negatives(found[half], positives[half], pairs[half], settings, seed=5), picked[half]
    )
    assert (pick_negatives(found, positives, pairs, settings, seed=6) != picked).any(axis=1).mean() > 0.7


def test_known_positives_are_removed_from_the_ranking():
    found = Neighbours(
        np.array([[1, 2, 3, 4], [1, 2, 3, NO_NEIGHBOUR]]), np.array([[0.9, 0.8, 0.7, 0.6]] * 2, np.float32)
    )
    remaining = without_positives(found, [np.array([1, 3]), np.zeros(0, np.int64)])
    np.testing.assert_array_equal(
        remaining.addresses, [[NO_NEIGHBOUR, 2, NO_NEIGHBOUR, 4], [1, 2, 3, NO_NEIGHBOUR]]
    )
    settings = MineSettings(skip=1, neighbours=2, margin=None)
    np.testing.assert_array_equal(
        pick_negatives(remaining, np.ones(2, np.float32), np.arange(2), settings, seed=0), [[4], [2]]
    )


def test_skipping_every_candidate_is_refused():
    with pytest.raises(ValueError, match="skip to be below neighbours"):
        MineSettings(skip=50)
