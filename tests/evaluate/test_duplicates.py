"""Duplicate mining matches sentence-transformers and all pairs, for any block size."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.evaluate import exact_ranks
from pipeline.evaluate.exact_ranks import most_similar
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import Peer, peer_evaluators, random_vectors, save, task_of


def gold_pairs(folder: Path) -> Path:
    left, right = [f"t{i}" for i in range(40)], [f"t{(i * 7 + 3) % 45}" for i in range(40)]
    return save(
        folder / "gold.parquet",
        {"sentence1": left, "sentence2": right, "label": [int(i % 3 == 0) for i in range(40)]},
    )


def test_equals_the_evaluator_of_sentence_transformers(tmp_path: Path):
    task, vectors = task_of("duplicates", gold_pairs(tmp_path)), random_vectors()
    texts, score = task.sentences(), task.score(vectors)
    gold = [(f"t{i}", f"t{(i * 7 + 3) % 45}") for i in range(0, 40, 3)]
    gold = [pair for pair in gold if pair[0] != pair[1]]
    found = peer_evaluators().ParaphraseMiningEvaluator(
        {text: text for text in texts}, duplicates_list=gold, write_csv=False
    )(Peer(vectors))
    assert score.value == pytest.approx(100 * found["average_precision"], abs=1e-4)
    assert score.metrics["F1"] == pytest.approx(100 * found["f1"], abs=1e-4)
    assert score.facts["threshold_f1"] == pytest.approx(found["threshold"], abs=1e-4)
    assert score.facts["gold_pairs"] == len({frozenset(pair) for pair in gold})
    assert not score.evidence


@pytest.mark.parametrize("block", [1, 200, 1 << 24])
@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "manhattan"])
def test_mined_pairs_are_the_most_similar_of_all_pairs(
    monkeypatch: pytest.MonkeyPatch, similarity: str, block: int
):
    monkeypatch.setattr(exact_ranks, "BLOCK", block)
    x = np.random.default_rng(2).normal(size=(40, 6)).astype(np.float32)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    norm = {"euclidean": 2, "manhattan": 1}.get(similarity)  # None: cosine
    nearness = {
        (i, j): float(unit[i] @ unit[j]) if norm is None else -float(np.linalg.norm(x[i] - x[j], ord=norm))
        for i, j in combinations(range(40), 2)
    }
    expected = sorted(nearness, key=lambda pair: -nearness[pair])[:50]
    bound = nearness[expected[20]] - 1e-6
    mined = most_similar(similarity, x, 39, 50, (bound,))
    assert [tuple(pair) for pair in mined.indices.tolist()] == expected
    np.testing.assert_allclose(mined.similarity, [nearness[pair] for pair in expected], atol=1e-5)
    assert mined.counts_above.tolist() == [21]


def test_only_the_nearest_neighbours_are_compared():
    x = np.array([[1, 0], [1, 0.01], [1, 0.02], [0, 1]], np.float32)
    assert {tuple(pair) for pair in most_similar("cosine", x, 1, 10).indices.tolist()} == {
        (0, 1),
        (1, 2),
        (2, 3),
    }


def test_texts_of_one_group_are_duplicates(tmp_path: Path):
    file = save(
        tmp_path / "groups.parquet", {"text": ["a", "b", "c", "a", "d", "e"], "group": [1, 1, 1, 1, 2, None]}
    )
    task = task_of("duplicates", file)
    assert task.sentences() == ["a", "b", "c", "d", "e"]
    assert task.score(random_vectors()).facts["gold_pairs"] == 3


def test_without_gold_labels_similar_pairs_are_counted_and_listed(tmp_path: Path):
    file = save(tmp_path / "texts.parquet", {"text": [f"t{i}" for i in range(30)]})
    vectors = random_vectors(3)
    score = task_of("duplicates", file, options={"threshold": 0.85}).score(vectors)
    x = vectors([f"t{i}" for i in range(30)])
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = (x @ x.T)[np.triu_indices(30, 1)]
    for bound in (0.7, 0.8, 0.85, 0.9, 0.95, 0.99):
        assert score.metrics[f"pairs of at least {bound:g}"] == (cosines >= bound).sum()
    assert score.value == (cosines >= 0.85).sum()
    assert score.facts["top"][0]["similarity"] == pytest.approx(cosines.max(), abs=1e-6)
    assert "no gold" in score.metric
    distances = task_of(
        "duplicates", file, EvaluateSettings(similarity="euclidean"), options={"threshold": -1}
    ).score(vectors)
    assert list(distances.metrics) == ["pairs of at least -1"]


def test_unsuitable_texts_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="at least two different texts, found 1"):
        task_of("duplicates", save(tmp_path / "one.parquet", {"text": ["a", "a"]}))
    with pytest.raises(DataError, match="two different texts that are duplicates"):
        task_of(
            "duplicates",
            save(tmp_path / "none.parquet", {"sentence1": ["a"], "sentence2": ["b"], "label": [0]}),
        )
