"""A file of word vectors is evaluated on ratings, analogies and categories; unknown words are reported."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from pipeline.config import load_settings
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.evaluate.report import store_evaluation
from pipeline.log import Stages
from pipeline.settings import Job
from tests.evaluate.files import save
from tests.models.folder.wordfiles import write_words

pytestmark = pytest.mark.usefixtures("cluster")

COUNTRIES = ("france", "spain", "italy", "japan")
CAPITALS = ("paris", "madrid", "rome", "tokyo")


def test_a_file_of_word_vectors_is_evaluated_on_words(tmp_path: Path):
    rng = np.random.default_rng(0)
    countries = rng.normal(size=(4, 6)) + 4 * np.eye(6)[0]
    # Capitals differ from their countries in one direction, and categories are far apart.
    words = (*COUNTRIES, *CAPITALS)
    x = np.vstack([countries, countries + 6 * np.eye(6)[1]]).astype(np.float32)
    vectors = write_words(tmp_path / "vectors.txt", words, x, "word2vec")
    pairs = [(country, capital) for country in COUNTRIES for capital in CAPITALS]
    ratings = rng.permutation(len(pairs) + 1) / 2.0
    first, second = zip(*pairs, strict=True)
    save(
        tmp_path / "ratings.parquet",
        {"sentence1": [*first, "zzz"], "sentence2": [*second, "rome"], "score": ratings},
    )
    questions = [
        (COUNTRIES[i], CAPITALS[i], COUNTRIES[j], CAPITALS[j]) for i in range(4) for j in range(4) if i != j
    ]
    questions.append(("france", "paris", "zzz", "rome"))
    save(tmp_path / "analogies.parquet", dict(zip("abcd", zip(*questions, strict=True), strict=True)))
    save(
        tmp_path / "categories.parquet",
        {"text": [*words, "zzz"], "label": ["country"] * 4 + ["capital"] * 5},
    )
    tasks = (
        f"{{kind: sts, uri: {tmp_path}/ratings.parquet, options: {{high: 10}}}}, "
        f"{{kind: analogies, uri: {tmp_path}/analogies.parquet}}, "
        f"{{kind: categories, uri: {tmp_path}/categories.parquet}}"
    )
    job = load_settings(
        Job,
        None,
        (
            f"encoder.path={vectors}",
            f"evaluate.own=[{tasks}]",
            f"release.root={tmp_path}/root",
            "evaluate.bootstrap=20",
        ),
    )
    stored = store_evaluation(evaluate(job, Stages()), "today")
    results = {result["task"]: result for result in stored.facts["results"]}
    by_word = dict(zip(words, x.astype(np.float64), strict=True))
    cosines = [
        by_word[a] @ by_word[b] / np.linalg.norm(by_word[a]) / np.linalg.norm(by_word[b]) for a, b in pairs
    ]
    expected = 100 * spearmanr(cosines, ratings[:-1]).statistic
    assert results["ratings"]["figures"]["Spearman of pairs with vectors"] == pytest.approx(
        expected, abs=1e-3
    )
    assert results["ratings"]["value"] == pytest.approx(
        100 * spearmanr([*cosines, 0], ratings).statistic, abs=1e-3
    )
    unit = {word: vector / np.linalg.norm(vector) for word, vector in by_word.items()}
    correct = []
    for a, b, c, d in questions[:-1]:
        target = unit[b] - unit[a] + unit[c]
        correct.append(
            max((word for word in unit if word not in (a, b, c)), key=lambda w: unit[w] @ target) == d
        )
    assert sum(correct) > 6
    assert results["analogies"]["value"] == pytest.approx(100 * sum(correct) / 13)
    assert results["analogies"]["figures"]["accuracy of known questions"] == pytest.approx(
        100 * np.mean(correct)
    )
    assert results["categories"]["value"] == pytest.approx(100 * 8 / 9)
    assert results["categories"]["figures"]["purity of known words"] == 100
    page = Path(stored.report).read_text()
    for task in ("ratings", "analogies", "categories"):
        assert results[task]["facts"]["without_vector"] == 1
        assert any(
            "the encoder gave 1 text no usable vector ('zzz')" in warning
            for warning in results[task]["warnings"]
        )
        assert task in page
    assert "first without vector" in page
