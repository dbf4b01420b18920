"""Pairs with human scores on any scale are measured on that of STS-B."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.flows.evaluate.geometry import human_scored_pairs
from pipeline.settings import Job


@pytest.mark.parametrize(
    ("scores", "scale", "expected"),
    [
        ([0.0, 2.5, 4.5], (0, 5), [0.0, 2.5, 4.5]),
        ([1.0, 3.0, 4.5], (1, 5), [1.0, 3.0, 4.5]),  # SICK
        ([0.0, 0.5, 0.9, 1.0], (0, 1), [0.0, 2.5, 4.5, 5.0]),
        ([10.0, 90.0, 60.0, 50.0], (0, 100), [0.0, 5.0, 3.125, 2.5]),
        ([-1.0, 0.0, 1.0], (-1e9, 1e9), [0.0, 2.5, 5.0]),
    ],
)
def test_scores_are_from_0_to_5(
    tmp_path: Path, scores: list[float], scale: tuple[float, float], expected: list[float]
):
    left, right = ([f"{side} {row}" for row in range(len(scores))] for side in ("a", "b"))
    file = tmp_path / "own.parquet"
    pq.write_table(pa.table({"sentence1": left, "sentence2": right, "score": scores}), file)
    options = f"{{low: {scale[0]:f}, high: {scale[1]:f}}}"
    job = load_settings(Job, None, (f"evaluate.own=[{{kind: sts, uri: {file}, options: {options}}}]",))
    pairs = human_scored_pairs(job).pairs
    assert pairs is not None
    np.testing.assert_allclose(pairs.gold, expected, atol=1e-12)
