"""The adapter for mteb gives the scores of our tasks on local data."""

import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.models_protocols import EncoderProtocol
from mteb.types import PromptType

from pipeline.errors import ConfigError
from pipeline.evaluate.mteb import mteb_model
from tests.evaluate.files import save, task_of

SENTENCES = (
    "A man is playing a guitar.",
    "A person plays a musical instrument.",
    "The stock market fell sharply today.",
    "Shares dropped on Wall Street.",
    "Two dogs run.",
    "A cat sleeps on the sofa.",
    "The animal is resting on a couch.",
    "It will rain tomorrow in the north.",
    "",
    "Rain is expected in northern regions.",
)


def pairs() -> dict[str, list[Any]]:
    """Return all pairs of sentences with distinct scores, because implementations treat ties differently."""
    left, right = zip(*combinations(SENTENCES, 2), strict=True)
    return {
        "sentence1": list(left),
        "sentence2": list(right),
        "score": np.random.default_rng(0).uniform(0, 5, len(left)).tolist(),
    }


class LocalPairs(AbsTaskSTS):
    """STS task with local rows."""

    metadata = TaskMetadata(
        name="LocalPairs",
        description="pairs made here",
        reference=None,
        dataset={"path": "local/pairs", "revision": "1"},
        type="STS",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        bibtex_citation=None,
    )
    min_score, max_score = 0, 5

    def load_data(self, **_: Any) -> None:
        self.dataset, self.data_loaded = DatasetDict({"test": Dataset.from_dict(pairs())}), True


def transformed(vectors: np.ndarray) -> np.ndarray:
    """Apply a transform that changes cosines."""
    return (vectors[:, :64] - 0.02).astype(np.float32)


@pytest.mark.parametrize("transform", [None, transformed])
def test_scores_in_mteb_equal_those_of_our_task(tmp_path: Path, minilm, transform):
    found = mteb.evaluate(
        mteb_model(minilm, transform), LocalPairs(), cache=None, show_progress_bar=False, co2_tracker=False
    )
    theirs = found.task_results[0].scores["test"][0]
    ours = task_of("sts", save(tmp_path / "pairs.parquet", pairs())).score(
        lambda texts: minilm.encode(texts) if transform is None else transform(minilm.encode(texts))
    )
    assert ours.value / 100 == pytest.approx(theirs["cosine_spearman"], abs=1e-6)
    assert ours.value / 100 == pytest.approx(theirs["spearman"], abs=1e-6)
    assert ours.metrics["Pearson all"] / 100 == pytest.approx(theirs["cosine_pearson"], abs=1e-6)


def test_the_model_implements_mtebs_protocol(minilm):
    model = mteb_model(minilm, name="ours/minilm")
    assert isinstance(model, EncoderProtocol)
    meta = model.mteb_model_meta
    assert (meta.name, meta.revision, meta.embed_dim, meta.max_tokens) == (
        "ours/minilm",
        minilm.space_id[:16],
        384,
        minilm.max_length,
    )


def test_queries_get_the_query_prompt_and_missing_texts_are_a_blank():
    class Spy:
        dim, space_id, max_length = 2, "0" * 64, 8

        def encode(self, texts, *, query=False):
            return np.array([[len(text), query] for text in texts], np.float32)

    model = mteb_model(Spy())
    batches = [{"text": ["a", None]}, {"text": ["abc"]}]
    np.testing.assert_array_equal(
        model.encode(batches, prompt_type=PromptType.query), [[1, 1], [1, 1], [3, 1]]
    )
    np.testing.assert_array_equal(model.encode(batches, prompt_type=PromptType.document)[:, 1], [0, 0, 0])
    np.testing.assert_array_equal(model.encode(batches)[:, 1], [0, 0, 0])


def test_similarities_are_cosines():
    model = mteb_model(type("Any", (), {"dim": 2, "space_id": "", "max_length": 8})())
    x, y = np.array([[1, 0], [1, 1]], np.float32), np.array([[0, 2], [3, 3]], np.float32)
    np.testing.assert_allclose(model.similarity(x, y), [[0, 0.5**0.5], [0.5**0.5, 1]], atol=1e-6)
    np.testing.assert_allclose(model.similarity_pairwise(x, y), [0, 1], atol=1e-6)


def test_similarities_are_those_of_the_encoders_folder():
    values = {"dim": 2, "space_id": "", "max_length": 8, "similarity": "dot"}
    model = mteb_model(type("Any", (), values)())
    x, y = np.array([[1, 0], [1, 1]], np.float32), np.array([[0, 2], [3, 3]], np.float32)
    np.testing.assert_allclose(model.similarity(x, y), x @ y.T)
    np.testing.assert_allclose(model.similarity_pairwise(x, y), [0, 6])
    assert model.mteb_model_meta.similarity_fn_name.value == "dot"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, minilm):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ConfigError, match="manta-embeddings\\[bench\\]"):
        mteb_model(minilm)
