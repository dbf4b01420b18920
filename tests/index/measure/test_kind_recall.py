"""Recall is extrapolated to more rows by a power law of the misses in samples of growing size."""

import numpy as np
import pytest

from pipeline.index.measure.kind_recall import CAPTION_RECALLS, CodeRecall, required_of_codes
from pipeline.index.measure.metrics import Proportion

SIZES, TRIALS = (12_500, 50_000, 200_000), 10**7


def code_recall(missed: list[float]) -> CodeRecall:
    """Return measurements in which these proportions were missed, with narrow intervals."""
    recall = tuple(Proportion.of(round((1 - proportion) * TRIALS), TRIALS) for proportion in missed)
    return CodeRecall(kind="ivf_sq8", dims_per_byte=8, rows=SIZES, recall=recall)


@pytest.mark.parametrize("power", [0.0, 0.1, 0.3])
def test_a_power_law_is_extrapolated(power: float):
    measured = code_recall([0.002 * (rows / SIZES[0]) ** power for rows in SIZES])
    for rows in (200_000, 10**7, 10**9):
        expected = 1 - 0.002 * (rows / SIZES[0]) ** power
        assert measured.expected(rows) == pytest.approx(expected, abs=2e-3)


def test_more_rows_are_never_expected_to_be_easier():
    measured = code_recall([0.004, 0.003, 0.002])
    assert measured.expected(10**9) == measured.expected(200_000) == pytest.approx(0.998, abs=1e-4)
    assert (np.diff([CAPTION_RECALLS.measured[0].expected(10**power) for power in range(4, 10)]) <= 0).all()


def test_a_small_sample_is_trusted_less():
    few, many = (
        CodeRecall(kind="x", dims_per_byte=8, rows=(1_000,), recall=(Proportion.of(hits, trials),))
        for hits, trials in ((99, 100), (9_900, 10_000))
    )
    assert few.expected(1_000) < many.expected(1_000) < 0.99


def test_codes_may_miss_half_of_the_neighbours_that_the_index_may_miss():
    assert required_of_codes(0.95) == pytest.approx(0.975)
    assert required_of_codes(1.0) == 1.0
