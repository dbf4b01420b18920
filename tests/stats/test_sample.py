"""Samples and histograms match counting by hand and all pairs; the singular spectrum matches a hand
computation.
"""

import hashlib

import numpy as np
import pytest

from pipeline.stats.sample import cosine_histogram, sample_by_key, singular_spectrum


def keys(count: int, salt: str = "") -> list[bytes]:
    return [hashlib.blake2b(f"{salt}{number}".encode(), digest_size=16).digest() for number in range(count)]


def test_a_sample_does_not_depend_on_order_or_parts() -> None:
    everything = keys(1_000)
    chosen = {everything[index] for index in sample_by_key(everything, 50)}
    assert len(chosen) == 50
    backwards = everything[::-1]
    assert {backwards[index] for index in sample_by_key(backwards, 50)} == chosen
    union = [
        part[index] for part in (everything[:300], everything[300:]) for index in sample_by_key(part, 50)
    ]
    assert {union[index] for index in sample_by_key(union, 50)} == chosen


def test_a_sample_is_uniform_and_depends_on_the_seed() -> None:
    indices = sample_by_key(keys(20_000), 2_000)
    assert (np.diff(indices) > 0).all()
    four_deviations = 60
    assert np.histogram(indices, 10, (0, 20_000))[0] == pytest.approx([200] * 10, abs=four_deviations)
    assert len(set(indices) & set(sample_by_key(keys(20_000), 2_000, seed=1))) == pytest.approx(
        200, abs=four_deviations
    )


def test_all_keys_are_sampled_if_there_are_few() -> None:
    assert sample_by_key(keys(3), 10).tolist() == [0, 1, 2]
    assert sample_by_key([], 10).tolist() == []


def test_the_mean_cosine_estimates_the_mean_over_all_pairs() -> None:
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


def test_a_singular_spectrum_matches_a_hand_computation() -> None:
    x = np.array([[1, 0], [2, 1], [1, 2], [-1, 1]], np.float32)
    np.testing.assert_allclose(singular_spectrum(x), [1, 0.602068], atol=1e-6)
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    np.testing.assert_allclose(singular_spectrum(x, centred=True), np.sqrt(values / values[0]), atol=1e-6)
