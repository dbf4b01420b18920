"""Whitening is chosen exactly if it is not worse; scores match counting and scipy."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from pipeline.errors import DataError
from pipeline.stats.moments import Moments
from pipeline.transforms.compare import (
    DevPairs,
    Halves,
    compare,
    mean_reciprocal_rank,
    spearman,
    split_halves,
)
from pipeline.transforms.whitening import fit_whitening


def test_a_text_is_split_in_the_middle_of_its_words() -> None:
    assert split_halves("one two three four  five six\nseven eight nine") == (
        "one two three four",
        "five six seven eight nine",
    )
    assert split_halves("one two three four five six seven") is None
    assert split_halves("") is None


def test_reciprocal_rank_matches_counting() -> None:
    rng = np.random.default_rng(0)
    queries, targets = (
        rng.normal(size=(1_100, 6)),
        rng.normal(size=(1_100, 6)) + 0.5,
    )  # more than one block of queries
    expected = []
    for number, query in enumerate(queries):
        scores = targets @ query / np.linalg.norm(targets, axis=1)
        expected.append(1 / (1 + (np.delete(scores, number) > scores[number]).sum()))
    assert mean_reciprocal_rank(queries, targets) == pytest.approx(np.mean(expected), abs=1e-4)


def test_a_perfect_match_scores_one_and_equal_vectors_the_minimum() -> None:
    x = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    assert mean_reciprocal_rank(x, 3 * x) == 1
    assert mean_reciprocal_rank(x, np.ones_like(x)) == pytest.approx(1 / 100)  # ties count against
    with pytest.raises(DataError, match="at least one"):
        mean_reciprocal_rank(x[:0], x[:0])


def test_spearman_matches_scipy_on_cosines() -> None:
    rng = np.random.default_rng(0)
    left, right, gold = rng.normal(size=(200, 8)), rng.normal(size=(200, 8)), rng.integers(0, 6, 200)
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(left, right, strict=True)]
    assert spearman(left, right, gold) == pytest.approx(spearmanr(cosines, gold).statistic)
    with pytest.raises(DataError, match=r"whiten.dev"):
        spearman(left, right, np.ones(200))


def space(loudness: float) -> tuple[np.ndarray, np.ndarray]:
    """Return two noisy views of 400 texts: 20 informative directions, and 4 others `loudness` times as
    strong.
    """
    rng = np.random.default_rng(0)
    meaning = rng.normal(size=(400, 20))
    views = [
        np.hstack([meaning + 0.3 * rng.normal(size=(400, 20)), loudness * rng.normal(size=(400, 4))])
        for _ in range(2)
    ]
    return views[0], views[1]


@pytest.mark.parametrize(("loudness", "helps"), [(30.0, True), (0.01, False)])
def test_whitening_is_used_if_it_is_not_worse(loudness: float, helps: bool) -> None:
    first, second = space(loudness)
    whiten = fit_whitening(Moments.of(np.concatenate([first, second])))
    found = compare(Halves(first, second), whiten)
    assert found.uses_whitening is helps
    assert (found.whitened > found.raw) is helps
    assert ("is used" in found.sentence) is helps
    assert f"{found.raw:.4f} raw, {found.whitened:.4f} whitened" in found.sentence
    gold = np.r_[np.ones(200), np.zeros(200)]
    pairs = compare(DevPairs(first, np.concatenate([second[:200], second[200:][::-1]]), gold), whiten)
    assert pairs.uses_whitening is helps


def test_a_tie_uses_whitening() -> None:
    first, second = space(1.0)
    assert compare(Halves(first, second), lambda x: x).uses_whitening


def test_sentences_name_the_transform() -> None:
    found = compare(Halves(*space(1.0)), lambda x: x, "standardize+components")
    assert found.sentence.startswith(
        "The transform standardize+components is used: it is not worse. First half"
    )
    assert f"{found.whitened:.4f} transformed." in found.sentence
