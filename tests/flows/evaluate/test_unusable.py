"""Sentences without a usable vector, and one vector for all sentences, are scored with a warning."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

from pipeline.config import load_settings
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from tests.evaluate.files import save
from tests.flows.conftest import sentences
from tests.flows.evaluate.evaluating import job, write_pairs
from tests.models.folders import save_folder

pytestmark = pytest.mark.usefixtures("cluster")


def test_pairs_with_a_sentence_without_a_finite_vector_have_cosine_zero(tmp_path: Path):
    """One word overflows the encoder; sentences without it keep their vectors."""
    from safetensors.numpy import load_file, save_file

    broken = save_folder(tmp_path / "broken", "bert")
    weights = load_file(broken / "model.safetensors")
    word = json.loads((broken / "tokenizer.json").read_text())["model"]["vocab"]["window"]
    weights["embeddings.word_embeddings.weight"][word] = 3e38  # finite, but its norm is infinite
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    texts = [text.replace("window", "river") for text in sentences(30)]
    file = write_pairs(tmp_path / "tasks/sts/STS12.parquet", 40, 0, [*texts, "window", "a window"])
    found = evaluate(job(tmp_path, broken, "evaluate.bootstrap=0"), Stages())
    result = found.measured[0].results[0].result
    usable = load_encoder(EncoderSettings(path=str(broken), normalize=True), EncodeSettings(), "cpu")
    pairs = pq.read_table(file)
    cosines = [
        0.0 if "window" in f"{left} {right}" else float(np.dot(*usable.encode([left, right])))
        for left, right in zip(*(pairs[side].to_pylist() for side in ("sentence1", "sentence2")), strict=True)
    ]
    assert 0 < cosines.count(0.0) < 40
    (warning,) = result.warnings
    assert f"{cosines.count(0.0)} of 40 pairs are scored with a zero vector" in warning
    assert result.value == pytest.approx(100 * spearmanr(cosines, pairs["score"]).statistic, abs=1e-3)
    again = evaluate(job(tmp_path, broken, "evaluate.bootstrap=0", "evaluate.similarity=dot"), Stages())
    assert again.encoded == 0, "that a sentence has no vector is stored, too"


def test_blank_and_missing_texts_are_counted_in_a_warning(tmp_path: Path):
    columns = {"sentence1": ["red", None, "green", " \t"], "sentence2": ["green", "red", "", "red"]}
    save(tmp_path / "pairs.parquet", columns | {"label": [1, 0, 0, 1]})
    (tmp_path / "words.txt").write_text("red 1 2\ngreen 2 1\n")
    own = f"evaluate.own=[{{kind: pairs, uri: {tmp_path}/pairs.parquet}}]"
    root = f"release.root={tmp_path}/root"
    settings = load_settings(Job, None, (f"encoder.path={tmp_path}/words.txt", own, root))
    warnings = evaluate(settings, Stages()).measured[0].results[0].result.warnings
    assert any("3 texts are missing or blank" in warning for warning in warnings)


def test_one_vector_for_all_sentences_is_a_warning(tmp_path: Path):
    texts = ["red", "green", "red green", "green red red"]
    (tmp_path / "words.txt").write_text("red 1 2\ngreen 1 2\n")
    write_pairs(tmp_path / "tasks/sts/STS12.parquet", 20, 0, texts)
    found = evaluate(job(tmp_path, tmp_path / "words.txt", "evaluate.bootstrap=0"), Stages())
    warnings = found.measured[0].results[0].result.warnings
    assert any("one and the same vector" in warning for warning in warnings)
