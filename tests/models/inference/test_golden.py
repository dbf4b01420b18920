"""Published scores of all-MiniLM-L6-v2: Spearman x100 over all pairs of a year ("all")."""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

DATA = os.environ.get("MANTA_EVAL_DATA")


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="MANTA_EVAL_DATA names the folder of evaluation data")
@pytest.mark.parametrize(
    ("name", "expected"), [("STS12", 72.37), ("STS13", 80.60), ("STS15", 85.39), ("STSB-test", 82.03)]
)
def test_sts_scores_are_the_published_ones(minilm, name, expected):
    pairs = pq.read_table(Path(str(DATA)) / "sts" / f"{name}.parquet")
    first, second = (minilm.encode(pairs[column].to_pylist()) for column in ("sentence1", "sentence2"))
    cosines = (first * second).sum(axis=1) / (np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1))
    assert round(100 * spearmanr(cosines, pairs["score"].to_numpy()).statistic, 2) == expected
