"""Skip-Thought: two decoders predict the sentences around one, each row by itself."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import save_joined
from pipeline.objectives.build import data_requirements
from pipeline.objectives.skip_thought import SkipThought
from pipeline.settings.training import TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import encoder_at
from tests.objectives.three_words import decoder_loss, new_recurrent, new_word_table, rows_of
from tests.objectives.tiny import assert_halves_average_to_the_whole, assert_same, pop_gradients

TEXTS = {
    "previous": ["one", "two two", "", "unknown zero zero one"],
    "text": ["zero two", "one", "zero", "unknown"],
    "next": ["two", "zero", "one one two zero one", "two"],
}


@pytest.fixture
def folder(tmp_path: Path) -> EncoderFolder:
    return new_recurrent(tmp_path / "uni")


def objective_of(folder: EncoderFolder, **options: object) -> SkipThought:
    torch.manual_seed(0)
    return SkipThought(load_trainable(folder), **options).double()


@pytest.mark.parametrize("directions", [1, 2])
def test_the_loss_and_its_gradient_are_those_of_the_equations(tmp_path: Path, directions: int):
    folder = new_recurrent(tmp_path / "new", directions)
    objective, batch = objective_of(folder), rows_of(folder, TEXTS)
    found = loss_and_backward(objective, batch).loss
    computed = pop_gradients(objective)
    vectors = objective.encoder(batch.tokens("text"))
    assert vectors.shape == (4, 4)
    parts = {
        role: decoder_loss(objective, "gru", vectors, role, TEXTS[role]) for role in ("previous", "next")
    }
    for role, expected in parts.items():
        torch.testing.assert_close(found.parts[role], expected.detach())
    sum(parts.values()).backward()
    assert_same(computed, pop_gradients(objective))
    assert all(gradient.abs().max() > 0 for gradient in computed.values())


def test_the_end_token_is_predicted_and_the_start_token_is_not(folder: EncoderFolder):
    objective = objective_of(folder)
    with torch.no_grad():
        objective.output.zero_()
        objective.bias.zero_()
    found = loss_and_backward(objective, rows_of(folder, TEXTS)).loss
    words_and_end = {"previous": (1 + 2 + 0 + 4) / 4 + 1, "next": (1 + 1 + 5 + 1) / 4 + 1}
    for role, count in words_and_end.items():
        assert found.parts[role].item() == pytest.approx(count * math.log(6))  # a vocabulary of six


def test_decoders_start_from_frequencies_by_zipfs_law(folder: EncoderFolder):
    """Tokens have ranks by their order: unknown words, end and the three words. The start has the last."""
    objective = objective_of(folder)
    with torch.no_grad():
        objective.output.zero_()
    assert folder.tokenizer().vocabulary() == {"<unk>": 0, "<s>": 1, "</s>": 2, "zero": 3, "one": 4, "two": 5}
    odds = [1 / (rank + 2.7) for rank in (0, 5, 2, 3, 4, 5)]
    zero, one, two, end = (-math.log(odds[index] / sum(odds)) for index in (3, 4, 5, 2))
    found = loss_and_backward(
        objective, rows_of(folder, {**TEXTS, "next": ["zero one", "two", "", "one"]})
    ).loss
    assert found.parts["next"].item() == pytest.approx((zero + 2 * one + two) / 4 + end)


def test_chunks_give_the_loss_and_the_gradient_of_the_whole_batch(folder: EncoderFolder):
    objective, batch = objective_of(folder), rows_of(folder, TEXTS)
    expected = loss_and_backward(objective, batch).loss.total
    known = pop_gradients(objective)
    for chunk_rows in (1, 3):
        found = loss_and_backward(objective, batch, chunk_rows=chunk_rows).loss.total
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert_same(pop_gradients(objective), known)


def test_the_mean_over_two_halves_is_that_of_the_whole_batch(folder: EncoderFolder):
    assert_halves_average_to_the_whole(objective_of(folder), rows_of(folder, TEXTS))


def test_the_trained_model_is_the_encoder_alone_or_beside_another(tmp_path: Path):
    uni, bi = new_recurrent(tmp_path / "uni"), new_recurrent(tmp_path / "bi", 2)
    alone = SkipThought(load_trainable(bi))
    assert (alone.trained_model().dim, alone.trained_model().twin) == (4, None)
    both = SkipThought(load_trainable(bi), beside=str(uni.path))
    assert {name.split(".")[0] for name in both.state_dict()} == {"encoder", "decoders", "output", "bias"}
    model, texts = both.eval().trained_model(), [*TEXTS["text"], *TEXTS["next"]]
    saved = save_joined((model.encoder, model.twin), tmp_path / "combined")
    expected = np.concatenate([encoder_at(each.path).encode(texts) for each in (bi, uni)], axis=1)
    np.testing.assert_allclose(encoder_at(saved.path).encode(texts), expected, atol=1e-6)
    np.testing.assert_allclose(model(saved.tokenizer()(texts)).detach(), expected, atol=1e-6)


def test_an_encoder_of_other_words_is_refused_before_the_training(tmp_path: Path, folder: EncoderFolder):
    other = new_recurrent(tmp_path / "other", counts=Counter({"zero": 2, "three": 1}))
    with pytest.raises(ModelError, match="the same tokenizer as uni"):
        SkipThought(load_trainable(folder), beside=str(other.path))


def test_encoders_without_a_start_and_an_end_token_are_refused(tmp_path: Path):
    words = new_word_table(tmp_path / "words")
    with pytest.raises(ModelError, match=r"found 0 before and 0 after; train a new recurrent encoder"):
        SkipThought(load_trainable(words))


def test_it_reads_running_text_with_fastsent_but_not_with_quickthoughts():
    beside_fastsent = data_requirements(TrainSettings(objective=["skip_thought", "fastsent"]))
    assert beside_fastsent == (("text", "document", "position"), (), "adjacent")
    with pytest.raises(ConfigError, match=r"skip_thought \(adjacent\), quickthoughts \(contiguous\)"):
        data_requirements(TrainSettings(objective=["skip_thought", "quickthoughts"]))


def test_a_large_vocabulary_gives_a_warning(folder: EncoderFolder):
    objective = objective_of(folder)
    assert objective.warnings() == []
    objective.output = torch.nn.Parameter(torch.zeros(40_000, 4))
    assert "softmax over 40,000 words" in objective.warnings()[0]
