"""TF-IDF as a candidate: its scores are those of dense vectors by the formula, and a night refuses it."""

import math
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics.pairwise import paired_cosine_distances

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError, ModelError
from pipeline.evaluate.tfidf import TfIdf
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.evaluate.report import store_evaluation
from pipeline.flows.night.nightly import nightly
from pipeline.log import Stages
from pipeline.settings import Job
from tests.evaluate.files import save

CORPUS = [
    "the dog sleeps",
    "the cat sleeps here",
    "A dog, a cat and the sun",
    "the sun shines",
    "the the the rain",
    "here is rain",
]
LEFT = ["the dog sleeps", "sun and rain", "the cat shines", "unheard words", "rain rain here", "A cat"]
RIGHT = ["the cat sleeps", "the rain", "a cat shines here", "the dog", "here is rain", "the dog shines"]
SCORES = [3.0, 2.5, 4.5, 0.0, 4.0, 1.0]


def dense(texts: list[str]) -> np.ndarray:
    """Compute count * ln(N / df) word by word; the commas of the corpus are words too."""

    def words(text: str) -> list[str]:
        return text.lower().replace(",", " ,").split()

    documents = Counter(word for text in CORPUS for word in set(words(text)))
    vectors = np.zeros((len(texts), len(documents)))
    for row, text in enumerate(texts):
        for column, (word, count) in enumerate(documents.items()):
            vectors[row, column] = words(text).count(word) * math.log(len(CORPUS) / count)
    return vectors


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=1)
    return np.divide(left @ right.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def job_of(folder: Path, *overrides: str) -> Job:
    save(folder / "corpus.parquet", {"text": CORPUS})
    save(folder / "pairs.parquet", {"sentence1": LEFT, "sentence2": RIGHT, "score": SCORES})
    save(folder / "search.parquet", {"query": LEFT, "positive": RIGHT})
    tasks = f"{{kind: sts, uri: {folder}/pairs.parquet}}, {{kind: retrieval, uri: {folder}/search.parquet}}"
    settings = (
        f"evaluate.own=[{tasks}]",
        f"evaluate.candidates=[{{tfidf: {folder}/corpus.parquet}}]",
        f"release.root={folder}/root",
        "evaluate.bootstrap=20",
    )
    return load_settings(Job, None, (*settings, *overrides))


def test_scores_are_those_of_dense_vectors_by_the_formula(tmp_path: Path):
    stored = store_evaluation(evaluate(job_of(tmp_path), Stages()), "today")
    results = {result["task"]: result for result in stored.facts["results"]}
    similarities = cosines(dense(LEFT), dense(RIGHT))
    expected = 100 * spearmanr(np.round(np.diag(similarities), 12), SCORES).statistic
    assert results["pairs"]["value"] == pytest.approx(expected, abs=1e-9)
    assert results["pairs"]["facts"]["without_vector"] == 1  # "unheard words"
    ranks = [1 + sum(np.delete(row, query) >= row[query] - 1e-9) for query, row in enumerate(similarities)]
    gains = [1 / math.log2(1 + rank) if rank <= 10 else 0 for rank in ranks]
    assert results["search"]["value"] == pytest.approx(100 * np.mean(gains), abs=1e-9)
    (candidate,) = stored.facts["candidates"]
    assert (candidate["name"], candidate["dim"]) == ("TF-IDF of corpus.parquet", dense([""]).shape[1])


def test_only_the_commonest_words_of_the_corpus_are_counted():
    tfidf = TfIdf.of_texts(CORPUS, "corpus", most=1)
    assert tfidf.counter.vocabulary_ == {"the": 0}
    assert tfidf.idf.tolist() == [pytest.approx(math.log(6 / 5))]
    assert tfidf(["the dog and the cat", "cat"]).toarray().ravel().tolist() == [2 * tfidf.idf[0], 0]
    with pytest.raises(DataError, match="expected texts with words"):
        TfIdf.of_texts(["", " "], "blank")


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("evaluate.similarity=euclidean", "evaluate.similarity=euclidean"),
        ("evaluate.own=[{{kind: triplets, uri: {0}/triplets.parquet}}]", "the triplets task triplets"),
    ],
)
def test_tasks_and_similarities_that_need_dense_vectors_are_refused(
    override: str, found: str, tmp_path: Path
):
    save(tmp_path / "triplets.parquet", {"anchor": LEFT, "positive": RIGHT, "negative": RIGHT[::-1]})
    with pytest.raises(ConfigError, match=f"TF-IDF has sparse vectors.*found {found}"):
        evaluate(job_of(tmp_path, override.format(tmp_path)), Stages())
    with pytest.raises(ConfigError, match="--geometry"):
        evaluate(job_of(tmp_path), Stages(), geometry=True)


def test_it_is_neither_an_encoder_nor_a_candidate_with_one(tmp_path: Path):
    with pytest.raises(ConfigError, match="tfidf alone"):
        job_of(tmp_path, "evaluate.candidates=[{tfidf: a.parquet, release: 1}]")
    job = job_of(tmp_path, "encoder.path=tfidf", f"corpus.uri={tmp_path}/corpus.parquet")
    with pytest.raises(ModelError, match=r"sparse, so that no index can hold them.*evaluate.candidates"):
        nightly(job, Stages())


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_rare_words_count_on_real_text(tmp_path: Path):
    """Counts weighted by rarity agree better with people than counts alone."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    corpus, dev = (data / name for name in ("running/documents.parquet", "sts/STSB-dev.parquet"))
    job = job_of(
        tmp_path,
        f"evaluate.own=[{{kind: sts, uri: {dev}}}]",
        f"evaluate.candidates=[{{tfidf: {corpus}}}]",
    )
    found = store_evaluation(evaluate(job, Stages()), "today").facts["results"][0]["value"]
    pairs = pq.read_table(dev)
    counter = CountVectorizer(token_pattern=r"\w+")
    counts = counter.fit_transform([*pairs["sentence1"].to_pylist(), *pairs["sentence2"].to_pylist()])
    distances = paired_cosine_distances(counts[: len(pairs)], counts[len(pairs) :])
    of_counts_alone = -100 * spearmanr(distances, pairs["score"].to_numpy()).statistic
    assert found > of_counts_alone + 5
