"""The frequency table matches scipy's distances."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from pipeline.stats import frequency
from pipeline.stats.frequency import frequency_bands


def test_bands_match_norms_and_sorted_distances_of_all_words():
    rng = np.random.default_rng(0)
    table, counts = rng.normal(size=(620, 5)).astype(np.float32), rng.permutation(620) + 1
    bands, missing = frequency_bands(table, counts)
    assert missing == {}
    assert [(band.first_rank, band.last_rank, band.words) for band in bands] == [
        (1, 100, 100),
        (101, 500, 400),
        (501, 5_000, 120),
    ]
    order = np.argsort(-counts)
    distances = np.sort(cdist(table, table), axis=1)[:, 1:]  # without the word itself
    for band, rows in zip(bands, (order[:100], order[100:500], order[500:]), strict=True):
        assert band.norm == pytest.approx(np.linalg.norm(table[rows], axis=1).mean(), abs=1e-6)
        assert list(band.distances) == [3, 5, 7]
        for k, distance in band.distances.items():
            assert distance == pytest.approx(distances[rows, :k].mean(), abs=1e-6)


def test_words_beyond_the_last_rank_are_in_no_band_and_not_among_the_neighbours(monkeypatch):
    monkeypatch.setattr(frequency, "MAX_WORDS", 50)
    monkeypatch.setattr(frequency, "_EDGES", (0, 10, 50))
    table = np.arange(53, dtype=np.float32)[:, None]  # on a line, by rank
    table[50:] = 5.25  # closer to row 5 than any other, but too rare
    bands, _ = frequency_bands(table, np.arange(53, 0, -1))
    assert [band.words for band in bands] == [10, 40]
    # Row 0 and row 49 have their nearest three at 1, 2 and 3; the others at 1, 1 and 2.
    assert bands[0].distances[3] == pytest.approx((2 + 9 * 4 / 3) / 10)
    assert bands[1].distances[3] == pytest.approx((2 + 39 * 4 / 3) / 40)


def test_too_few_words_give_a_reason():
    assert frequency_bands(np.eye(7), np.arange(7)) == (
        (),
        {"frequency_table": "needs more than 7 words, there are 7"},
    )
