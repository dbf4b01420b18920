"""FastSent: the sum of a sentence's word vectors predicts the words of the sentences around it."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.new_word_table import write_word_table_folder
from pipeline.objectives import Batch
from pipeline.objectives.build import data_requirements
from pipeline.objectives.fastsent import FastSent
from pipeline.settings import EncoderSettings
from pipeline.settings.training import TrainSettings
from pipeline.settings.weights import WordTableSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folder.wordfiles import write_words
from tests.models.folders import save_folder
from tests.objectives.tiny import assert_same, batch_of, gradients

COUNTS = Counter({"zero": 81, "one": 16, "two": 1})
TEXTS = {
    "previous": ["one", "two two", "", "unknown"],
    "text": ["zero two", "one", "zero", "unknown"],
    "next": ["two", "zero", "one one", "two"],
}


@pytest.fixture
def folder(tmp_path: Path) -> EncoderFolder:
    """Word vectors of three words in two dimensions."""
    torch.set_num_threads(1)
    write_word_table_folder(WordTableSettings(dim=2), COUNTS, tmp_path / "words", seed=0)
    return open_folder(EncoderSettings(path=str(tmp_path / "words")))


def objective_of(folder: EncoderFolder, **options: object) -> FastSent:
    """FastSent with the vectors of a hand computation."""
    objective = FastSent(load_trainable(folder), **options).double()
    with torch.no_grad():
        objective.encoder.backbone.word_table.copy_(torch.tensor([[1, 0], [0, 1], [1, 1]]))
        objective.output.copy_(torch.tensor([[1, 0], [0, 0.5], [-1, 1]]))
    return objective


def rows(folder: EncoderFolder, count: int = 4) -> Batch:
    texts = {role: values[:count] for role, values in TEXTS.items()}
    return replace(batch_of(texts), tokenize=folder.tokenizer())


@pytest.mark.parametrize(("autoencode", "loss"), [(False, 4.982623), (True, 8.465245)])
def test_the_loss_of_one_sentence_matches_a_hand_computation(
    folder: EncoderFolder, autoencode: bool, loss: float
):
    result = loss_and_backward(objective_of(folder, autoencode=autoencode), rows(folder, 1))
    assert result.reps[0].tolist() == [[2, 1]]
    assert result.loss.total.item() == pytest.approx(loss, abs=1e-6)


def test_the_gradient_is_that_of_the_formula(folder: EncoderFolder):
    objective = objective_of(folder)
    loss_and_backward(objective, rows(folder, 1))
    table, output = torch.tensor([[1.0, 0], [0, 1], [1, 1]]).double(), objective.output.detach()
    sentence = table[0] + table[2]
    error = 2 * torch.softmax(output @ sentence, 0) - torch.tensor([0, 1, 1])  # of the scores
    own = output.T @ error
    found = gradients(objective)
    torch.testing.assert_close(found["output"], torch.outer(error, sentence))
    words = next(value for name, value in found.items() if name.startswith("encoder."))
    torch.testing.assert_close(words, torch.stack([own, torch.zeros(2).double(), own]))


@pytest.mark.parametrize("negatives", [None, 5])
def test_chunks_give_the_loss_and_the_gradient_of_the_whole_batch(
    folder: EncoderFolder, negatives: int | None
):
    objective, batch = objective_of(folder, negatives=negatives), rows(folder)

    def trained(chunk_rows: int | None) -> torch.Tensor:
        torch.manual_seed(3)
        return loss_and_backward(objective, batch, chunk_rows=chunk_rows).loss.total

    expected, known = trained(None), gradients(objective)
    assert expected > 0
    for chunk_rows in (1, 3):
        torch.testing.assert_close(trained(chunk_rows), expected, rtol=0, atol=1e-12)
        assert_same(gradients(objective), known)


def test_the_mean_over_two_halves_is_that_of_the_whole_batch(folder: EncoderFolder):
    """So two ranks, whose gradients are averaged, train as one."""
    objective, batch = objective_of(folder, autoencode=True), rows(folder)
    loss_and_backward(objective, batch)
    expected = gradients(objective)
    halves = []
    for indices in (np.array([0, 1]), np.array([2, 3])):
        loss_and_backward(objective, batch.of_rows(indices))
        halves.append(gradients(objective))
    mean = {name: (halves[0][name] + halves[1][name]) / 2 for name in expected}
    assert_same(mean, expected)


def test_negatives_are_drawn_by_the_counts_to_the_power_of_three_quarters(folder: EncoderFolder):
    objective = objective_of(folder, negatives=1_000)
    torch.manual_seed(0)
    objective.views(rows(folder))
    drawn = objective._targets.negatives
    assert drawn.shape == (8, 1_000)
    expected = np.array([27, 8, 1]) / 36
    np.testing.assert_allclose(np.bincount(drawn.ravel()) / drawn.size, expected, atol=0.02)
    again = objective._targets.negatives
    objective.views(rows(folder))
    assert (objective._targets.negatives != again).any(), "each step draws others"


def test_special_tokens_are_not_predicted(tmp_path: Path):
    folder = open_folder(EncoderSettings(path=str(save_folder(tmp_path / "bert", "bert"))))
    objective = FastSent(load_trainable(folder))
    batch = replace(
        batch_of({"previous": ["a dog"], "text": ["a cat"], "next": [""]}), tokenize=folder.tokenizer()
    )
    objective.views(batch)
    whole = batch.tokens("previous").ids
    assert objective._targets.words.tolist() == whole[1:-1].tolist()


def test_negatives_need_word_counts(folder: EncoderFolder, tmp_path: Path):
    (folder.path / FREQUENCIES).unlink()
    with pytest.raises(ModelError, match=r"word counts in frequencies.parquet.*found no such file"):
        FastSent(load_trainable(folder), negatives=5)
    FastSent(load_trainable(folder))
    words = write_words(tmp_path / "own.txt", ("zero", "one"), np.ones((2, 2), np.float32))
    with pytest.raises(ModelError, match="train new word vectors"):
        FastSent(load_trainable(open_folder(EncoderSettings(path=str(words)))), negatives=5)


def test_it_reads_running_text_and_cannot_be_added_to_an_objective_of_another_order():
    def requirements(*names: str) -> tuple[object, ...]:
        return tuple(data_requirements(TrainSettings(objective=[{"name": name} for name in names])))

    assert requirements("fastsent") == (("text", "document", "position"), (), "adjacent")
    assert requirements("fastsent", "simcse")[2] == "adjacent"
    with pytest.raises(ConfigError, match=r"fastsent \(adjacent\), quickthoughts \(contiguous\)"):
        requirements("fastsent", "quickthoughts")
