"""FastSent: the sum of a sentence's word vectors predicts the words of the sentences around it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import Batch
from pipeline.objectives.build import data_requirements
from pipeline.objectives.fastsent import FastSent
from pipeline.settings import EncoderSettings
from pipeline.settings.training import TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folder.wordfiles import write_words
from tests.models.folders import save_folder
from tests.objectives.three_words import (
    OUTPUT_VECTORS,
    WORD_VECTORS,
    new_word_table,
    rows_of,
    set_known_vectors,
)
from tests.objectives.tiny import assert_halves_average_to_the_whole, assert_same, pop_gradients

TEXTS = {
    "previous": ["one", "two two", "", "unknown"],
    "text": ["zero two", "one", "zero", "unknown"],
    "next": ["two", "zero", "one one", "two"],
}


@pytest.fixture
def folder(tmp_path: Path) -> EncoderFolder:
    return new_word_table(tmp_path / "words")


def objective_of(folder: EncoderFolder, **options: object) -> FastSent:
    """Build FastSent with the vectors of the hand computations."""
    objective = FastSent(load_trainable(folder), **options).double()
    set_known_vectors(objective)
    return objective


def first_rows(folder: EncoderFolder, count: int = 4) -> Batch:
    return rows_of(folder, {role: texts[:count] for role, texts in TEXTS.items()})


@pytest.mark.parametrize(("autoencode", "loss"), [(False, 4.982623), (True, 8.465245)])
def test_the_loss_of_one_sentence_matches_a_hand_computation(
    folder: EncoderFolder, autoencode: bool, loss: float
):
    result = loss_and_backward(objective_of(folder, autoencode=autoencode), first_rows(folder, 1))
    assert result.reps[0].tolist() == [[2, 1]]
    assert result.loss.total.item() == pytest.approx(loss, abs=1e-6)


def test_the_gradient_is_that_of_the_formula(folder: EncoderFolder):
    objective = objective_of(folder)
    loss_and_backward(objective, first_rows(folder, 1))
    table, output = torch.tensor(WORD_VECTORS).double(), torch.tensor(OUTPUT_VECTORS).double()
    sentence = table[0] + table[2]  # "zero two", which predicts "one" and "two"
    score_gradient = 2 * torch.softmax(output @ sentence, 0) - torch.tensor([0, 1, 1])
    sentence_gradient = output.T @ score_gradient
    found = pop_gradients(objective)
    torch.testing.assert_close(found["output"], torch.outer(score_gradient, sentence))
    (word_gradient,) = (gradient for name, gradient in found.items() if name.startswith("encoder."))
    torch.testing.assert_close(
        word_gradient, torch.stack([sentence_gradient, torch.zeros(2).double(), sentence_gradient])
    )


@pytest.mark.parametrize("negatives", [None, 5])
def test_chunks_give_the_loss_and_the_gradient_of_the_whole_batch(
    folder: EncoderFolder, negatives: int | None
):
    objective, batch = objective_of(folder, negatives=negatives), first_rows(folder)

    def loss_of_step(chunk_rows: int | None) -> torch.Tensor:
        torch.manual_seed(3)
        return loss_and_backward(objective, batch, chunk_rows=chunk_rows).loss.total

    expected, known = loss_of_step(None), pop_gradients(objective)
    assert expected > 0
    for chunk_rows in (1, 3):
        torch.testing.assert_close(loss_of_step(chunk_rows), expected, rtol=0, atol=1e-12)
        assert_same(pop_gradients(objective), known)


def test_the_mean_over_two_halves_is_that_of_the_whole_batch(folder: EncoderFolder):
    assert_halves_average_to_the_whole(objective_of(folder, autoencode=True), first_rows(folder))


def test_negatives_are_drawn_by_the_counts_to_the_power_of_three_quarters(folder: EncoderFolder):
    objective = objective_of(folder, negatives=1_000)
    torch.manual_seed(0)
    objective.views(first_rows(folder))
    drawn = objective._targets.negatives
    assert drawn.shape == (8, 1_000)
    expected = np.array([27, 8, 1]) / 36  # 81, 16 and 1 to the power of 3/4
    np.testing.assert_allclose(np.bincount(drawn.ravel()) / drawn.size, expected, atol=0.02)
    objective.views(first_rows(folder))
    assert (objective._targets.negatives != drawn).any()  # each step draws new ones


def test_special_tokens_are_not_predicted(tmp_path: Path):
    folder = open_folder(EncoderSettings(path=str(save_folder(tmp_path / "bert", "bert"))))
    objective = FastSent(load_trainable(folder))
    batch = rows_of(folder, {"previous": ["a dog"], "text": ["a cat"], "next": [""]})
    objective.views(batch)
    _, *words, _ = batch.tokens("previous").ids.tolist()
    assert objective._targets.words.tolist() == words


def test_negatives_need_word_counts(folder: EncoderFolder, tmp_path: Path):
    (folder.path / FREQUENCIES).unlink()
    with pytest.raises(ModelError, match=r"word counts in frequencies.parquet.*found no such file"):
        FastSent(load_trainable(folder), negatives=5)
    FastSent(load_trainable(folder))  # without negatives it needs no counts
    words = write_words(tmp_path / "own.txt", ("zero", "one"), np.ones((2, 2), np.float32))
    with pytest.raises(ModelError, match="train new word vectors"):
        FastSent(load_trainable(open_folder(EncoderSettings(path=str(words)))), negatives=5)


def test_it_reads_running_text_and_cannot_be_added_to_an_objective_of_another_order():
    alone, beside_simcse = (
        data_requirements(TrainSettings(objective=names)) for names in ("fastsent", ["fastsent", "simcse"])
    )
    assert alone == (("text", "document", "position"), (), "adjacent")
    assert beside_simcse.order == "adjacent"
    with pytest.raises(ConfigError, match=r"fastsent \(adjacent\), quickthoughts \(contiguous\)"):
        data_requirements(TrainSettings(objective=["fastsent", "quickthoughts"]))
