"""Triplet accuracy matches sentence-transformers and a hand computation."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import Peer, looked_up, peer_evaluators, random_vectors, save, task_of


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "manhattan", "dot"])
def test_equals_the_evaluator_of_sentence_transformers(tmp_path: Path, similarity: str):
    columns = {role: [f"{role}{i}" for i in range(50)] for role in ("anchor", "positive", "negative")}
    vectors = random_vectors()
    score = task_of(
        "triplets", save(tmp_path / "t.parquet", columns), EvaluateSettings(similarity=similarity)
    ).score(vectors)
    peer = peer_evaluators().TripletEvaluator(
        columns["anchor"],
        columns["positive"],
        columns["negative"],
        write_csv=False,
        main_similarity_function=similarity,
    )
    assert score.value == pytest.approx(100 * peer(Peer(vectors))[f"{similarity}_accuracy"], abs=1e-4)


def test_ties_are_wrong_and_reported(tmp_path: Path):
    file = save(
        tmp_path / "t.parquet", {"anchor": ["a", "a"], "positive": ["b", "b"], "negative": ["b", "c"]}
    )
    task = task_of("triplets", file)
    score = task.score(looked_up({"a": [1, 0], "b": [1, 0.1], "c": [0, 1]}))
    assert (score.value, score.facts["ties"], score.facts["ties_count_as"]) == (50.0, 1, "wrong")
    assert "1 of 2 triplets have equal similarities" in score.warnings[0]
    assert task.statistic(score.evidence, np.array([1, 1])) == 100


def test_missing_triplets_and_columns_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="columns anchor, positive, negative, found anchor, positive"):
        task_of("triplets", save(tmp_path / "t.parquet", {"anchor": ["a"], "positive": ["b"]}))
    with pytest.raises(DataError, match="at least one triplet"):
        task_of(
            "triplets",
            save(
                tmp_path / "t.parquet",
                {"anchor": np.array([], str), "positive": np.array([], str), "negative": np.array([], str)},
            ),
        )
