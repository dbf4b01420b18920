"""Sentences without a usable vector, and one vector for all sentences, are scored with a warning."""

import json
from pathlib import Path

import pytest

from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.log import Stages
from tests.flows.conftest import sentences
from tests.flows.evaluate.evaluating import job, write_pairs
from tests.models.folders import save_folder

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_sentence_without_a_finite_vector_has_the_lowest_similarity(tmp_path: Path, encoder: Path):
    """One word overflows the encoder; all other sentences keep their vectors."""
    from safetensors.numpy import load_file, save_file

    broken = save_folder(tmp_path / "broken", "bert")
    weights = load_file(broken / "model.safetensors")
    word = json.loads((broken / "tokenizer.json").read_text())["model"]["vocab"]["window"]
    weights["embeddings.word_embeddings.weight"][word] = 3e38  # finite, but its norm is infinite
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    texts = [text.replace("window", "river") for text in sentences(30)]
    write_pairs(tmp_path / "tasks/sts/STS12.parquet", 40, 0, [*texts, "window", "a window"])
    found = evaluate(job(tmp_path, broken, "evaluate.bootstrap=0"), Stages())
    (warning,) = found.measured[0].results[0].result.warnings
    assert "no usable vector" in warning
    again = evaluate(job(tmp_path, broken, "evaluate.bootstrap=0", "evaluate.similarity=dot"), Stages())
    assert again.encoded == 0, "sentences without a vector are known too"


def test_one_vector_for_all_sentences_is_a_warning(tmp_path: Path):
    texts = ["red", "green", "red green", "green red red"]
    (tmp_path / "words.txt").write_text("red 1 2\ngreen 1 2\n")
    write_pairs(tmp_path / "tasks/sts/STS12.parquet", 20, 0, texts)
    found = evaluate(job(tmp_path, tmp_path / "words.txt", "evaluate.bootstrap=0"), Stages())
    assert any(
        "one and the same vector" in warning for warning in found.measured[0].results[0].result.warnings
    )
