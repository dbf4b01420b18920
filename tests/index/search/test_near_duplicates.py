"""Near-duplicates that an index finds are those of all pairs, and groups are what pairs connect."""

import numpy as np
import pytest

from pipeline.index.build.build import fill, train
from pipeline.index.build.index_shape import plan_index
from pipeline.index.files.parts import Parts
from pipeline.index.search.near_duplicates import Pairs, candidate_pairs, cosines_of, group_pairs
from pipeline.index.structure import ivf_of
from pipeline.settings import IndexSettings
from tests.index.clustered import cosines, some_map

ROWS, COPIES, THRESHOLD = 700, 60, 0.97


def nearly_equal(seed: int) -> np.ndarray:
    """Make rows of which some are near copies of others, and 60 are equal."""
    rng = np.random.default_rng(seed)
    raw = rng.normal(size=(ROWS, 32)) + 0.3
    copied = rng.choice(ROWS, 200, replace=False)
    raw[copied] = raw[rng.integers(0, 30, 200)] + rng.uniform(0.02, 0.3, (200, 1)) * rng.normal(
        size=(200, 32)
    )
    raw[-COPIES:] = raw[0]
    return raw.astype(np.float32)


def component(start: int, neighbours: dict[int, set[int]]) -> set[int]:
    """Return the rows that can be reached from a row, by breadth-first search."""
    reached, front = {start}, [start]
    while front:
        front = [row for each in front for row in neighbours[each] if row not in reached]
        reached.update(front)
    return reached


@pytest.mark.parametrize("kind", ["flat", "ivf_flat", "ivf_sq8", "opq_ivf_pq", "hnsw"])
def test_candidates_contain_all_pairs_above_the_threshold(kind):
    raw = nearly_equal(0)
    addresses = (np.arange(ROWS) // 100 << 32) | np.arange(ROWS) % 100
    nlist = 8 if "ivf" in kind else None
    index = train(plan_index(ROWS, 28, IndexSettings(kind=kind, nlist=nlist)), some_map(), raw)
    fill(index, [(addresses, raw)])
    if ivf_of(index) is not None:
        ivf_of(index).nprobe = 4
    exact = np.triu(cosines(raw, raw, some_map()) >= THRESHOLD, k=1)
    expected = {(int(addresses[a]), int(addresses[b])) for a, b in zip(*np.nonzero(exact), strict=True)}
    found = candidate_pairs(Parts([index], addresses[1:3]), addresses, raw, THRESHOLD)
    pairs = set(zip(found.left.tolist(), found.right.tolist(), strict=True))
    assert len(pairs) == len(found.left)
    assert (found.left < found.right).all()
    both_live = {pair for pair in expected if not set(pair) <= set(addresses[1:3].tolist())}
    assert len(both_live) > COPIES**2 / 2
    assert len(both_live - pairs) <= 0.005 * len(both_live)


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_the_connected_components(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 60))
    left, right = rng.integers(0, count, (2, rng.integers(0, 50)))
    left, right = left[left != right], right[left != right]
    neighbours: dict[int, set[int]] = {row: set() for row in range(count)}
    for one, other in zip(left.tolist(), right.tolist(), strict=True):
        neighbours[one].add(other)
        neighbours[other].add(one)
    expected = {row: min(component(row, neighbours)) for row in neighbours if neighbours[row]}
    groups = group_pairs(left, right, count)
    assert dict(zip(groups.rows.tolist(), groups.firsts.tolist(), strict=True)) == expected
    order = list(zip(groups.firsts.tolist(), groups.rows.tolist(), strict=True))
    assert order == sorted(order)


def test_pairs_are_ordered_and_unique():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 20, (2, 300))
    pairs = Pairs.unique(one, other)
    expected = sorted({(min(a, b), max(a, b)) for a, b in zip(one.tolist(), other.tolist(), strict=True)})
    assert list(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)) == expected


def test_cosines_do_not_depend_on_the_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    left, right = rng.integers(0, 50, (2, 101))
    monkeypatch.setattr("pipeline.index.search.near_duplicates._COMPARED", 7)
    np.testing.assert_allclose(
        cosines_of(vectors, left, right), (vectors @ vectors.T)[left, right], atol=1e-6
    )
    assert cosines_of(vectors, left[:0], right[:0]).shape == (0,)
