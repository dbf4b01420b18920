"""SDAE: a decoder predicts the words of a text from the vector of its corrupted words."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.augment.corrupt import omit_words, swap_bigrams
from pipeline.errors import ConfigError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives.build import build_objective
from pipeline.objectives.sdae import SequentialDenoisingAutoEncoder
from pipeline.settings.training import TrainSettings
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.three_words import decoder_loss, new_recurrent, rows_of
from tests.objectives.tiny import assert_same, pop_gradients

TEXTS = ["one two two zero one", "one", "", "unknown zero zero one two"]
LONG = ["zero one two " * 10] * 300


@pytest.fixture
def folder(tmp_path: Path) -> EncoderFolder:
    return new_recurrent(tmp_path / "lstm", cell="lstm")


def objective_of(folder: EncoderFolder, **options: object) -> SequentialDenoisingAutoEncoder:
    torch.manual_seed(0)
    return SequentialDenoisingAutoEncoder(load_trainable(folder), **options).double()


def corrupted(objective: SequentialDenoisingAutoEncoder, texts: list[str], seed: int) -> Tokens:
    """Return the corrupted texts that the encoder reads in a step."""
    torch.manual_seed(seed)
    (view,) = objective.views(rows_of(objective.encoder.folder, {"text": texts}))
    return view.tokens


@pytest.mark.parametrize("decoder", ["lstm", "gru"])
def test_the_loss_and_its_gradient_are_those_of_the_equations(folder: EncoderFolder, decoder: str):
    """The encoder reads the corrupted text, and the decoder predicts the original one."""
    objective = objective_of(folder, omit=0.4, swap=0.5, decoder=decoder)
    batch = rows_of(folder, {"text": TEXTS})
    torch.manual_seed(3)
    found = loss_and_backward(objective, batch).loss
    computed = pop_gradients(objective)
    read = corrupted(objective, TEXTS, seed=3)
    assert read.ids.tolist() != batch.tokens("text").ids.tolist()
    expected = decoder_loss(objective, decoder, objective.encoder(read), "text", TEXTS)
    torch.testing.assert_close(found.parts["text"], expected.detach())
    expected.backward()
    assert_same(computed, pop_gradients(objective))
    assert all(gradient.abs().max() > 0 for gradient in computed.values())


def test_without_noise_it_is_the_auto_encoder(folder: EncoderFolder):
    tokens = corrupted(objective_of(folder, omit=0.0, swap=0.0), TEXTS, seed=0)
    expected = folder.tokenizer()(TEXTS)
    np.testing.assert_array_equal(tokens.ids, expected.ids)
    np.testing.assert_array_equal(tokens.offsets, expected.offsets)


def test_words_are_deleted_with_the_given_probability(folder: EncoderFolder):
    tokens = corrupted(objective_of(folder, omit=0.3, swap=0.0), LONG, seed=1)
    words = len(tokens.ids) - 2 * len(LONG)  # without start and end
    assert words / (30 * len(LONG)) == pytest.approx(1 - 0.3, abs=0.02)


def test_pairs_of_words_are_exchanged_with_the_given_probability(folder: EncoderFolder):
    tokens = corrupted(objective_of(folder, omit=0.0, swap=0.2), LONG, seed=1)
    differ = (tokens.ids != folder.tokenizer()(LONG).ids).reshape(len(LONG), 32)[:, 1:31]
    np.testing.assert_array_equal(differ[:, ::2], differ[:, 1::2])  # both words of a pair, or none
    assert differ.mean() == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("noise", [{"omit": 0.3, "swap": 0.0}, {"omit": 0.0, "swap": 0.2}])
def test_start_and_end_tokens_are_not_corrupted(folder: EncoderFolder, noise: dict[str, float]):
    tokens = corrupted(objective_of(folder, **noise), LONG, seed=1)
    assert (tokens.ids[tokens.offsets[:-1]] == folder.tokenizer().prefix[0]).all()
    assert (tokens.ids[tokens.offsets[1:] - 1] == folder.tokenizer().suffix[0]).all()


def test_noise_is_drawn_again_in_each_step_and_is_determined_by_the_seed(folder: EncoderFolder):
    objective = objective_of(folder)
    first, again, other = (corrupted(objective, LONG, seed).ids.tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_noise_is_that_of_the_augmenter(folder: EncoderFolder):
    tokens = corrupted(objective_of(folder, omit=0.3, swap=0.3), TEXTS, seed=5)
    torch.manual_seed(5)
    rng = np.random.default_rng(int(torch.randint((1 << 63) - 1, ()).item()))
    expected = []
    for text in TEXTS:
        first, *words, last = folder.tokenizer()([text]).ids.tolist()
        expected += [first, *swap_bigrams(omit_words(words, 0.3, rng), 0.3, rng), last]
    assert tokens.ids.tolist() == expected


def test_the_whole_original_text_is_predicted_whatever_is_deleted(folder: EncoderFolder):
    objective = objective_of(folder, omit=1.0)
    with torch.no_grad():
        objective.output.zero_()
        objective.bias.zero_()
    found = loss_and_backward(objective, rows_of(folder, {"text": TEXTS})).loss.total.item()
    words_and_end = (5 + 1 + 0 + 5) / 4 + 1
    assert found == pytest.approx(words_and_end * math.log(6))  # a vocabulary of six
    lengths = corrupted(objective, TEXTS, seed=0).lengths
    assert lengths.tolist() == [3, 3, 2, 3]  # a word of each text is kept


def test_a_probability_above_one_is_refused(folder: EncoderFolder):
    settings = TrainSettings(objective={"name": "sdae", "options": {"omit": 1.5}})
    with pytest.raises(ConfigError, match=r"options of sdae: omit: expected .*found 1\.5"):
        build_objective(settings, load_trainable(folder))
