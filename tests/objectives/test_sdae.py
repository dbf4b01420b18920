"""SDAE: a decoder predicts the words of a text from the vector of its corrupted words."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.augment.corrupt import omit_words, swap_bigrams
from pipeline.errors import ConfigError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives.build import build_objective
from pipeline.objectives.sdae import SequentialDenoisingAutoEncoder
from pipeline.settings.training import TrainSettings
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import assert_same, gradients
from tests.objectives.writing import new_folder, rows_of, written_one_by_one

TEXTS = {"text": ["one two two zero one", "one", "", "unknown zero zero one two"]}
LONG = {"text": ["zero one two " * 10] * 300}


@pytest.fixture
def folder(tmp_path: Path) -> EncoderFolder:
    return new_folder(tmp_path / "lstm", cell="lstm")


def objective_of(folder: EncoderFolder, **options: object) -> SequentialDenoisingAutoEncoder:
    torch.manual_seed(0)
    return SequentialDenoisingAutoEncoder(load_trainable(folder), **options).double()


def view_tokens(objective: SequentialDenoisingAutoEncoder, texts: dict[str, list[str]], seed: int) -> Tokens:
    torch.manual_seed(seed)
    (view,) = objective.views(rows_of(objective.encoder.folder, texts))
    return view.tokens


@pytest.mark.parametrize("decoder", ["lstm", "gru"])
def test_the_loss_and_its_gradient_are_those_of_the_equations(folder: EncoderFolder, decoder: str):
    """The input is the corrupted text, the target the original one."""
    objective, batch = objective_of(folder, omit=0.4, swap=0.5, decoder=decoder), rows_of(folder, TEXTS)
    torch.manual_seed(3)
    found = loss_and_backward(objective, batch).loss
    computed = gradients(objective)
    corrupted = view_tokens(objective, TEXTS, seed=3)
    original = [folder.tokenizer()([text]).ids.tolist() for text in TEXTS["text"]]
    read = [row.tolist() for row in np.split(corrupted.ids, corrupted.offsets[1:-1])]
    assert read != original
    vectors = objective.encoder(corrupted)
    expected = torch.stack(
        [
            written_one_by_one(objective, decoder, vector, "text", ids)
            for vector, ids in zip(vectors, original, strict=True)
        ]
    ).mean()
    torch.testing.assert_close(found.parts["text"], expected.detach())
    expected.backward()
    assert_same(computed, gradients(objective))
    assert all(gradient.abs().max() > 0 for gradient in computed.values())


def test_without_noise_it_is_the_auto_encoder(folder: EncoderFolder):
    tokens = view_tokens(objective_of(folder, omit=0.0, swap=0.0), TEXTS, seed=0)
    expected = folder.tokenizer()(TEXTS["text"])
    np.testing.assert_array_equal(tokens.ids, expected.ids)
    np.testing.assert_array_equal(tokens.offsets, expected.offsets)


def test_words_are_deleted_and_exchanged_with_the_given_probabilities(folder: EncoderFolder):
    """30 words of 300 texts; of the words that are kept, those of an exchanged pair change places."""
    start, end = folder.tokenizer().prefix[0], folder.tokenizer().suffix[0]
    deleted = view_tokens(objective_of(folder, omit=0.3, swap=0.0), LONG, seed=1)
    assert 1 - (len(deleted.ids) - 600) / 9000 == pytest.approx(0.3, abs=0.02)
    exchanged = view_tokens(objective_of(folder, omit=0.0, swap=0.2), LONG, seed=1)
    original = folder.tokenizer()(LONG["text"])
    differ = (exchanged.ids != original.ids).reshape(300, 32)
    np.testing.assert_array_equal(differ[:, 1:31:2], differ[:, 2:32:2])  # both words of a pair
    assert differ[:, 1:31].mean() == pytest.approx(0.2, abs=0.02)
    for tokens in (deleted, exchanged):
        assert (tokens.ids[tokens.offsets[:-1]] == start).all()
        assert (tokens.ids[tokens.offsets[1:] - 1] == end).all()


def test_noise_is_drawn_again_in_each_step_and_follows_from_its_seed(folder: EncoderFolder):
    objective = objective_of(folder)
    first, again, other = (view_tokens(objective, LONG, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.ids, again.ids)
    assert first.ids.tolist() != other.ids.tolist()


def test_noise_is_that_of_the_augmenter(folder: EncoderFolder):
    tokens = view_tokens(objective_of(folder, omit=0.3, swap=0.3), TEXTS, seed=5)
    torch.manual_seed(5)
    rng = np.random.default_rng(int(torch.randint((1 << 63) - 1, ()).item()))
    expected = []
    for text in TEXTS["text"]:
        first, *words, last = folder.tokenizer()([text]).ids.tolist()
        expected += [first, *swap_bigrams(omit_words(words, 0.3, rng), 0.3, rng), last]
    assert tokens.ids.tolist() == expected


def test_the_whole_original_text_is_predicted_whatever_is_deleted(folder: EncoderFolder):
    objective = objective_of(folder, omit=1.0)
    with torch.no_grad():
        objective.output.zero_()
    found: Tensor = loss_and_backward(objective, rows_of(folder, TEXTS)).loss.total
    assert found.item() == pytest.approx(((5 + 1 + 0 + 5) / 4 + 1) * math.log(6))
    assert view_tokens(objective, TEXTS, seed=0).lengths.tolist() == [3, 3, 2, 3]


def test_a_noise_that_is_no_probability_is_refused(folder: EncoderFolder):
    settings = TrainSettings(objective={"name": "sdae", "options": {"omit": 1.5}})
    with pytest.raises(ConfigError, match="omit"):
        build_objective(settings, load_trainable(folder))
