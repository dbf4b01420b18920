"""Pair classification matches sentence-transformers; unsuitable labels are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import Peer, peer_evaluators, random_vectors, save, task_of


def labelled(folder: Path, **changed: Any) -> Path:
    rng = np.random.default_rng(5)
    columns = {
        "sentence1": [f"a{i}" for i in range(90)],
        "sentence2": [f"b{i % 70}" for i in range(90)],
        "label": rng.integers(0, 2, 90),
    }
    return save(folder / "pairs.parquet", columns | changed)


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "manhattan", "dot"])
def test_equals_the_evaluator_of_sentence_transformers(tmp_path: Path, similarity: str):
    file, vectors = labelled(tmp_path), random_vectors()
    task = task_of("pairs", file, EvaluateSettings(similarity=similarity))
    score, texts = task.score(vectors), task.sentences()
    labels = score.evidence["positive"].astype(int).tolist()
    found = peer_evaluators().BinaryClassificationEvaluator(
        texts[:90], texts[90:], labels, similarity_fn_names=[similarity], write_csv=False
    )(Peer(vectors))
    for ours, theirs in (("average precision", "ap"), ("accuracy", "accuracy"), ("F1", "f1")):
        assert score.metrics[ours] == pytest.approx(100 * found[f"{similarity}_{theirs}"], abs=1e-3)
    sign = -1 if similarity in ("euclidean", "manhattan") else 1  # sentence-transformers uses the distance
    assert sign * score.facts["threshold_f1"] == pytest.approx(found[f"{similarity}_f1_threshold"], abs=1e-5)
    assert sign * score.facts["threshold_accuracy"] == pytest.approx(
        found[f"{similarity}_accuracy_threshold"], abs=1e-5
    )
    assert task.statistic(score.evidence, np.arange(90)) == pytest.approx(score.value)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1] * 90, "one class only: 90 of 90 are 1"),
        ([0] * 89 + [None], "one class only: 0 of 89"),
        ([2] + [0, 1] * 44 + [1], "0 or 1 in 'label', found 1 other"),
    ],
)
def test_unusable_labels_are_refused(tmp_path: Path, labels: list[int | None], message: str):
    with pytest.raises(DataError, match=message):
        task_of("pairs", labelled(tmp_path, label=labels))


def test_pairs_without_label_are_counted_and_constant_predictions_warned_of(tmp_path: Path):
    task = task_of("pairs", labelled(tmp_path, label=[None, None, *([0, 1] * 44)]))
    score = task.score(lambda sentences: np.ones((len(sentences), 2), np.float32))
    assert (score.count, score.facts["without_label"], score.value) == (88, 2, 50.0)
    assert "same cosine similarity" in score.warnings[0]
