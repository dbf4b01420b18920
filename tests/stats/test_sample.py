"""Samples and histograms against counting by hand and against all pairs. A worked example for the singular spectrum."""

import hashlib

import numpy as np
import pytest

from pipeline.stats.sample import cosine_histogram, length_histogram, sample_by_key, singular_spectrum


def keys(count: int, salt: str = "") -> list[bytes]:
    return [hashlib.blake2b(f"{salt}{number}".encode(), digest_size=16).digest() for number in range(count)]


def test_a_sample_does_not_depend_on_order_or_on_parts() -> None:
    everything = keys(1_000)
    chosen = {everything[place] for place in sample_by_key(everything, 50)}
    assert len(chosen) == 50
    backwards = everything[::-1]
    assert {backwards[place] for place in sample_by_key(backwards, 50)} == chosen
    union = [
        part[place] for part in (everything[:300], everything[300:]) for place in sample_by_key(part, 50)
    ]
    assert {union[place] for place in sample_by_key(union, 50)} == chosen


def test_a_sample_is_spread_evenly_and_depends_on_the_seed() -> None:
    places = sample_by_key(keys(20_000), 2_000)
    assert (np.diff(places) > 0).all()
    assert np.histogram(places, 10, (0, 20_000))[0] == pytest.approx(
        [200] * 10, abs=60
    )  # 4 standard deviations
    assert len(set(places) & set(sample_by_key(keys(20_000), 2_000, seed=1))) == pytest.approx(200, abs=60)


def test_fewer_keys_than_asked_for_are_all_taken() -> None:
    assert sample_by_key(keys(3), 10).tolist() == [0, 1, 2]
    assert sample_by_key([], 10).tolist() == []


def test_the_mean_cosine_estimates_that_of_all_pairs() -> None:
    x = np.random.default_rng(0).normal(loc=0.3, size=(500, 16)).astype(np.float32)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    exact = ((unit @ unit.T).sum() - 500) / (500 * 499)
    found = cosine_histogram(x)
    assert found.total == 20_000
    assert found.mean == pytest.approx(exact, abs=0.01)
    assert found == cosine_histogram(x)


def test_a_row_is_never_paired_with_itself() -> None:
    opposite = np.array([[1.0, 0], [-1, 0]])
    assert cosine_histogram(opposite).counts[0] == 20_000


@pytest.mark.parametrize("limit", [10, 256, 300, 512, 8_192])
def test_lengths_up_to_the_limit_and_beyond_are_told_apart(limit: int) -> None:
    lengths = np.array([1, 2, limit - 1, limit, limit + 1, 50 * limit])
    found = length_histogram(lengths, limit)
    assert found.counts[-1] == 2
    assert found.total == 6
    assert found.edges[-2] == limit + 1
    assert found.mean == pytest.approx(lengths.mean())


def test_golden_of_a_singular_spectrum() -> None:
    x = np.array([[1, 0], [2, 1], [1, 2], [-1, 1]], np.float32)
    np.testing.assert_allclose(singular_spectrum(x), [1, 0.602068], atol=1e-6)
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    np.testing.assert_allclose(singular_spectrum(x, centred=True), np.sqrt(values / values[0]), atol=1e-6)
