"""NMT encoder: a decoder predicts the translation from the vector of the text, each row by itself."""

from pathlib import Path

import pytest
import torch

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import Batch
from pipeline.objectives.build import data_requirements
from pipeline.objectives.translation import Translation
from pipeline.settings.training import TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.three_words import decoder_loss, new_recurrent, rows_of
from tests.objectives.tiny import assert_halves_average_to_the_whole, assert_same, pop_gradients

TEXTS = {
    "text": ["zero two", "one", "", "unknown"],
    "translation": ["two", "zero one one", "one one two zero one", "two zero"],
}


@pytest.fixture
def folder(tmp_path: Path) -> EncoderFolder:
    return new_recurrent(tmp_path / "gru")


def objective_and_rows(folder: EncoderFolder) -> tuple[Translation, Batch]:
    torch.manual_seed(0)
    return Translation(load_trainable(folder)).double(), rows_of(folder, TEXTS)


def test_the_loss_and_its_gradient_are_those_of_the_equations(folder: EncoderFolder):
    objective, batch = objective_and_rows(folder)
    found = loss_and_backward(objective, batch).loss
    computed = pop_gradients(objective)
    vectors = objective.encoder(batch.tokens("text"))
    expected = decoder_loss(objective, "gru", vectors, "translation", TEXTS["translation"])
    torch.testing.assert_close(found.parts["translation"], expected.detach())
    expected.backward()
    assert_same(computed, pop_gradients(objective))
    assert all(gradient.abs().max() > 0 for gradient in computed.values())


def test_the_mean_over_two_halves_is_that_of_the_whole_batch(folder: EncoderFolder):
    assert_halves_average_to_the_whole(*objective_and_rows(folder))


def test_it_reads_texts_and_translations_in_any_order():
    found = data_requirements(TrainSettings(objective="translation"))
    assert found == (("text", "translation"), (), "shuffled")
