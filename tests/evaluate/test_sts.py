"""STS: aggregations match hand computations, scores match sentence-transformers and published ones."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from pipeline.errors import ConfigError, DataError
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import Peer, looked_up, peer_evaluators, random_vectors, save, task_of

COSINES = {"p1": 0.1, "p2": 0.2, "p3": 0.3, "q1": 0.8, "q2": 0.6, "q3": 0.9, "q4": 0.7}


def two_subsets(folder: Path) -> Path:
    names = list(COSINES)
    return save(
        folder / "two.parquet",
        {
            "subset": ["p"] * 3 + ["q"] * 4,
            "sentence1": ["origin"] * 7,
            "sentence2": names,
            "score": [1.0, 2, 3, 1, 2, 3, 4],
        },
    )


def vectors_of_cosines(sentences):
    """Return vectors with these cosines with "origin"."""
    return looked_up({"origin": [1, 0], **{name: [c, (1 - c * c) ** 0.5] for name, c in COSINES.items()}})(
        sentences
    )


@pytest.mark.parametrize(("how", "expected"), [("all", 34.8756), ("mean", 50.0), ("wmean", 42.8571)])
def test_aggregations_differ_and_are_named(tmp_path: Path, how: str, expected: float):
    score = task_of("sts", two_subsets(tmp_path), EvaluateSettings(aggregation=how)).score(vectors_of_cosines)
    assert score.value == pytest.approx(expected, abs=1e-4)
    assert score.metric == f"Spearman x100, cosine, {how}"
    assert [score.metrics[f"Spearman {each}"] for each in ("all", "mean", "wmean")] == pytest.approx(
        [34.8756, 50, 42.8571], abs=1e-4
    )
    assert (score.metrics["Spearman of p"], score.metrics["Spearman of q"]) == pytest.approx(
        (100, 0), abs=1e-9
    )
    assert score.facts["subsets"] == {"p": 3, "q": 4}


@pytest.mark.parametrize("how", ["all", "mean", "wmean"])
def test_the_statistic_of_all_rows_is_the_value(tmp_path: Path, how: str):
    task = task_of("sts", two_subsets(tmp_path), EvaluateSettings(aggregation=how))
    score = task.score(vectors_of_cosines)
    assert task.statistic(score.evidence, np.arange(7)) == pytest.approx(score.value, abs=1e-12)


def random_pairs(folder: Path, **changed: Any) -> Path:
    rng = np.random.default_rng(3)
    columns = {
        "sentence1": [f"a{i}" for i in range(60)],
        "sentence2": [f"b{i % 50}" for i in range(60)],
        "score": rng.integers(0, 11, 60) / 2,
    }
    return save(folder / "pairs.parquet", columns | changed)


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "manhattan", "dot"])
def test_equals_the_evaluator_of_sentence_transformers(tmp_path: Path, similarity: str):
    task = task_of("sts", random_pairs(tmp_path), EvaluateSettings(similarity=similarity))
    vectors = random_vectors()
    pairs, score = task.pairs(), task.score(vectors)
    peer = peer_evaluators().EmbeddingSimilarityEvaluator(
        pairs.left, pairs.right, pairs.gold.tolist(), similarity_fn_names=[similarity], write_csv=False
    )
    found = peer(Peer(vectors))
    assert score.value == pytest.approx(100 * found[f"spearman_{similarity}"], abs=1e-3)
    assert score.metrics["Pearson all"] == pytest.approx(100 * found[f"pearson_{similarity}"], abs=1e-3)


def test_angular_similarity_has_the_ranks_of_cosine(tmp_path: Path):
    file = random_pairs(tmp_path)
    cosine, angular = (
        task_of("sts", file, EvaluateSettings(similarity=each)).score(random_vectors())
        for each in ("cosine", "angular")
    )
    assert angular.value == pytest.approx(cosine.value, abs=1e-9)
    assert angular.metrics["Pearson all"] != pytest.approx(cosine.metrics["Pearson all"], abs=1e-3)


def test_pairs_without_a_score_are_counted_but_not_used(tmp_path: Path):
    scores = [None, float("nan"), *np.linspace(0, 5, 58)]
    score = task_of("sts", random_pairs(tmp_path, score=scores)).score(random_vectors())
    assert (score.count, score.facts["without_gold"], len(score.evidence["gold"])) == (58, 2, 58)


def test_a_missing_text_is_read_as_a_blank(tmp_path: Path):
    file = save(
        tmp_path / "gaps.parquet",
        {"sentence1": ["a", None, "c"], "sentence2": [None, "b", "c"], "score": [0, 1, 1]},
    )
    task = task_of("sts", file)
    assert task.sentences() == ["a", " ", "c", " ", "b", "c"]
    assert task.score(random_vectors()).facts["missing_texts"] == 2


def test_constant_predictions_give_zero_and_a_warning(tmp_path: Path):
    score = task_of("sts", random_pairs(tmp_path)).score(
        lambda sentences: np.ones((len(sentences), 3), np.float32)
    )
    assert score.value == 0
    assert "same cosine similarity" in score.warnings[0]


def test_a_subset_without_variance_is_excluded_with_a_warning(tmp_path: Path):
    subsets = ["flat"] * 20 + ["varied"] * 40
    scores = [2.0] * 20 + list(np.linspace(0, 5, 40))
    score = task_of(
        "sts", random_pairs(tmp_path, subset=subsets, score=scores), EvaluateSettings(aggregation="mean")
    ).score(random_vectors())
    assert score.value == pytest.approx(score.metrics["Spearman of varied"])
    assert "Spearman of flat" not in score.metrics
    assert "flat" in score.warnings[0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"score": [*[6.0] * 3, *[1.0] * 57]}, "scores from 0 to 5, found 3 outside, such as 6"),
        ({"score": [-0.1] + [1.0] * 59}, "such as -0.1"),
        ({"score": [float("inf")] + [1.0] * 59}, "1 outside"),
        ({"score": [2.0] * 60}, "at least two different scores"),
        ({"score": [1.0] + [None] * 59}, "at least two pairs"),
        ({"score": ["high"] * 60}, "a column of numbers"),
        ({"sentence1": list(range(60))}, "a column of strings for 'sentence1'"),
    ],
)
def test_unusable_pairs_are_refused(tmp_path: Path, columns: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        task_of("sts", random_pairs(tmp_path, **columns))


def test_columns_can_be_set_by_role(tmp_path: Path):
    file = save(
        tmp_path / "own.parquet",
        {
            "left": ["a", "b", "c"],
            "right": ["d", "e", "f"],
            "label": [0, 1, 1],
            "split": ["dev", "dev", "train"],
        },
    )
    with pytest.raises(
        DataError, match="expected the columns sentence1, sentence2, score, found left, right, label, split"
    ):
        task_of("sts", file)
    columns = {"sentence1": "left", "sentence2": "right", "score": "label"}
    assert task_of("sts", file, columns=columns).score(random_vectors()).count == 3
    assert task_of("sts", file, columns=columns, options={"split": "dev"}).score(random_vectors()).count == 2
    with pytest.raises(ConfigError, match="did you mean 'sentence1'"):
        task_of("sts", file, columns={"sentense1": "left"})
    with pytest.raises(DataError, match="rows whose split is 'test', found the splits dev, train"):
        task_of("sts", file, columns=columns, options={"split": "test"})


def test_a_narrower_scale_is_an_option(tmp_path: Path):
    with pytest.raises(DataError, match="scores from 1 to 5"):
        task_of("sts", random_pairs(tmp_path), options={"low": 1})
    with pytest.raises(ConfigError, match="did you mean 'low'"):
        task_of("sts", random_pairs(tmp_path), options={"lowe": 1})


def test_missing_invalid_and_changed_files_have_their_own_errors(tmp_path: Path):
    with pytest.raises(DataError, match="no such file"):
        task_of("sts", tmp_path / "absent.parquet")
    (tmp_path / "text.parquet").write_text("sentence1,sentence2,score")
    with pytest.raises(DataError, match="a Parquet file"):
        task_of("sts", tmp_path / "text.parquet")
    task = task_of("sts", random_pairs(tmp_path))
    random_pairs(tmp_path, score=np.linspace(0, 5, 60))
    with pytest.raises(DataError, match="changed or damaged"):
        task.score(random_vectors())


def test_the_digest_depends_on_everything_that_changes_the_score(tmp_path: Path):
    file = random_pairs(tmp_path)
    task = task_of("sts", file)
    again = pickle.loads(pickle.dumps(task))
    assert again.digest == task.digest == task_of("sts", file).digest
    others = [
        task_of("sts", file, EvaluateSettings(**{name: value}))
        for name, value in (("similarity", "dot"), ("aggregation", "mean"))
    ]
    assert len({each.digest for each in (task, *others, task_of("sts", file, options={"high": 6}))}) == 4
    assert again.score(random_vectors()).value == task.score(random_vectors()).value


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), [("STSB-dev", 86.72), ("STS13", 80.60)])
def test_the_packaged_encoder_has_its_published_scores(minilm, name: str, expected: float):
    folder = os.environ.get("MANTA_EVAL_DATA")
    if not folder:
        pytest.skip("MANTA_EVAL_DATA is not set to a folder of evaluation data")
    score = task_of("sts", Path(folder) / "sts" / f"{name}.parquet").score(minilm.encode)
    assert score.value == pytest.approx(expected, abs=0.01)


def test_ratings_of_words_are_correlated_with_and_without_the_unknown_words(tmp_path: Path):
    rng = np.random.default_rng(4)
    ratings = rng.permutation(20) / 2.0
    first, second = ([f"{letter}{row}" for row in range(20)] for letter in "ab")
    columns = {"word1": first, "word2": second, "rating": ratings}
    vectors = {word: rng.normal(size=3) for word in (*first, *second)}
    vectors |= {"a3": np.zeros(3), "b3": np.zeros(3), "b7": np.zeros(3)}
    task = task_of(
        "sts",
        save(tmp_path / "words.parquet", columns),
        columns={"sentence1": "word1", "sentence2": "word2", "score": "rating"},
        options={"high": 10},
    )
    score = task.score(looked_up(vectors))
    x, y = (np.array([vectors[word] for word in words], np.float32) for words in (first, second))
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    cosines = np.where(norms > 0, (x * y).sum(axis=1) / np.maximum(norms, 1e-9), 0)
    known = norms > 0
    assert known.sum() == 18
    assert score.value == pytest.approx(100 * spearmanr(cosines, ratings).statistic)
    assert score.metrics["Spearman of pairs with vectors"] == pytest.approx(
        100 * spearmanr(cosines[known], ratings[known]).statistic
    )
    assert (score.facts["without_vector"], score.facts["first_without_vector"]) == (3, ["a3", "b3", "b7"])
    assert score.warnings == (
        "words: the encoder gave 3 texts no usable vector ('a3', 'b3', 'b7'): "
        "2 of 20 pairs are scored with a zero vector",
    )
    whole = task.score(random_vectors())
    assert "without_vector" not in whole.facts
    assert "Spearman of pairs with vectors" not in whole.metrics
