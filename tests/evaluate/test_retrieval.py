"""Retrieval matches sentence-transformers and brute force, for any block size."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.evaluate import exact_ranks
from pipeline.evaluate.exact_ranks import search_targets
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import Peer, looked_up, peer_evaluators, random_vectors, save, task_of


def retrieval_file(folder: Path) -> Path:
    """Write 40 rows: some queries have several positives, some positives several queries."""
    return save(
        folder / "retrieval_file.parquet",
        {"query": [f"q{i % 25}" for i in range(40)], "positive": [f"p{i % 30}" for i in range(40)]},
    )


def test_equals_the_evaluator_of_sentence_transformers(tmp_path: Path):
    task, vectors = task_of("retrieval", retrieval_file(tmp_path)), random_vectors()
    score = task.score(vectors)
    relevant: dict[str, set[str]] = {}
    for i in range(40):
        relevant.setdefault(f"q{i % 25}", set()).add(f"p{i % 30}")
    queries, corpus = {q: q for q in relevant}, {f"p{i}": f"p{i}" for i in range(30)}
    evaluator = peer_evaluators().InformationRetrievalEvaluator(
        queries,
        corpus,
        relevant,
        mrr_at_k=[30],
        ndcg_at_k=[10],
        accuracy_at_k=[1],
        precision_recall_at_k=[1, 5, 10],
        map_at_k=[10],
        write_csv=False,
        score_functions={"cosine": Peer(vectors).similarity},
    )
    found = evaluator(Peer(vectors))
    assert score.value == pytest.approx(100 * found["cosine_ndcg@10"], abs=1e-4)
    assert score.metrics["MRR"] == pytest.approx(100 * found["cosine_mrr@30"], abs=1e-4)
    for k in (1, 5, 10):
        assert score.metrics[f"recall@{k}"] == pytest.approx(100 * found[f"cosine_recall@{k}"], abs=1e-4)
    assert (score.count, score.facts["targets"], score.facts["relevant"]) == (
        25,
        30,
        sum(map(len, relevant.values())),
    )
    assert task.statistic(score.evidence, np.arange(25)) == pytest.approx(score.value)


@pytest.mark.parametrize("similarity", ["cosine", "angular", "euclidean", "manhattan", "dot"])
@pytest.mark.parametrize("block", [1, 100, 1 << 24])
def test_ranks_match_sorting_every_row(monkeypatch: pytest.MonkeyPatch, similarity: str, block: int):
    monkeypatch.setattr(exact_ranks, "BLOCK", block)
    rng = np.random.default_rng(0)
    x, groups = rng.normal(size=(30, 5)).astype(np.float32), rng.integers(0, 4, 30)
    members = [np.flatnonzero(groups == group) for group in groups]
    found = search_targets(similarity, x, x, members, np.arange(30))
    y = x.astype(np.float64) / (
        np.linalg.norm(x, axis=1, keepdims=True) if similarity in ("cosine", "angular") else 1
    )
    norm = {"euclidean": 2, "manhattan": 1}.get(similarity)
    nearness = y @ y.T if norm is None else -np.linalg.norm(y[:, None] - y, ord=norm, axis=2)
    for row in range(30):
        others = [other for other in np.argsort(-nearness[row]) if other != row]
        expected = [rank for rank, other in enumerate(others, 1) if groups[other] == groups[row]]
        assert found.ranks[row].tolist() == expected
        assert found.nearest[row].tolist() == others[:3]


def test_few_targets_leave_places_empty():
    x = np.eye(3, dtype=np.float32)[:2]
    found = search_targets("cosine", x, x, [np.array([1]), np.array([0])], np.arange(2))
    assert found.nearest.tolist() == [[1, -1, -1], [0, -1, -1]]


def test_texts_search_their_group_but_not_themselves(tmp_path: Path):
    file = save(
        tmp_path / "groups.parquet", {"text": ["a", "b", "c", "d", "e"], "group": ["x", "x", "y", "y", None]}
    )
    vectors = looked_up({"a": [1, 0], "b": [1, 0.1], "c": [0, 1], "d": [-1, 0.2], "e": [0.1, 1]})
    score = task_of("retrieval", file, options={"k": 3}).score(vectors)
    assert score.count == 4  # e has no group: it is a target but not a query
    assert score.metric == "nDCG@3 x100, cosine"
    # a and b find each other first, and d finds c first; c has e before d
    np.testing.assert_allclose(score.evidence["gain"], [1, 1, 1 / np.log2(3), 1], atol=1e-6)


def test_ties_count_against(tmp_path: Path):
    score = task_of("retrieval", retrieval_file(tmp_path)).score(
        lambda sentences: np.ones((len(sentences), 3), np.float32)
    )
    assert score.metrics["recall@1"] == 0
    assert score.metrics["recall@10"] == 0


def test_queries_can_be_sampled_by_seed(tmp_path: Path):
    file = retrieval_file(tmp_path)
    first, again, other = (
        task_of("retrieval", file, EvaluateSettings(seed=seed), options={"queries": 5}) for seed in (1, 1, 2)
    )
    assert first.sentences() == again.sentences() != other.sentences()
    assert first.score(random_vectors()).count == 5
    assert first.digest == again.digest != other.digest


def test_files_without_relevant_targets_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="no text shares its group"):
        task_of("retrieval", save(tmp_path / "alone.parquet", {"text": ["a", "b"], "group": [1, 2]}))
    with pytest.raises(DataError, match="columns query, positive or text, group, found text"):
        task_of("retrieval", save(tmp_path / "text.parquet", {"text": ["a", "b"]}))
    with pytest.raises(DataError, match="queries with relevant targets, found no rows"):
        task_of(
            "retrieval",
            save(tmp_path / "none.parquet", {"query": np.array([], str), "positive": np.array([], str)}),
        )
