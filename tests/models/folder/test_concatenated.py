"""Two encoders as one, with concatenated vectors."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from pipeline.errors import ModelError
from pipeline.models.folder.concatenated import check_same_reading
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.models.trainable.saving import save_joined
from pipeline.settings import EncoderSettings
from tests.models.classic.recurrents import recurrent_folder
from tests.models.folders import (
    TEXTS,
    add_noise,
    copy_listed_files,
    edit_json,
    encoder_at,
    folder_at,
    save_folder,
)

Pair = tuple[TrainableEncoder, TrainableEncoder]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """An encoder, and a copy of it with noise added to its weights."""
    source = save_folder(tmp_path_factory.mktemp("source") / "bert", "bert")
    first = load_trainable(open_folder(EncoderSettings(path=str(source))))
    second = copy.deepcopy(first)
    torch.manual_seed(1)
    add_noise(second, 0.1)
    return first.eval(), second.eval()


@pytest.fixture(scope="module")
def joined(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> EncoderFolder:
    return save_joined(pair, tmp_path_factory.mktemp("joined") / "encoder")


def test_vectors_of_both_encoders_are_concatenated(pair: Pair, joined: EncoderFolder):
    encoder = encoder_at(joined.path)
    tokens = joined.tokenizer()(TEXTS)
    with torch.no_grad():
        expected = torch.cat([each(tokens) for each in pair], dim=1).numpy()
    assert encoder.dim == joined.dim == expected.shape[1] == 2 * pair[0].dim
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=2e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS, query=True), expected, atol=2e-5)


def test_texts_are_counted_once_and_padding_for_both_encoders(joined: EncoderFolder):
    encoder, *parts = (encoder_at(path) for path in (joined.path, *(part.path for part in joined.parts)))
    for each in (encoder, *parts):
        each.encode(TEXTS)
    found, first, second = (each.counters for each in (encoder, *parts))
    assert found.texts == len(TEXTS)
    assert (found.repeats, found.tokens) == (first.repeats, first.tokens)
    assert found.padding == first.padding + second.padding > 0


def test_each_part_is_a_complete_encoder(joined: EncoderFolder):
    whole = encoder_at(joined.path).encode(TEXTS)
    for part, half in zip(joined.parts, np.split(whole, 2, axis=1), strict=True):
        assert np.array_equal(encoder_at(part.path).encode(TEXTS), half)
    np.testing.assert_allclose(
        SentenceTransformer(str(joined.parts[0].path), device="cpu").encode(list(TEXTS)),
        whole[:, :48],
        atol=2e-5,
    )


def test_sentence_transformers_refuses_the_folder(joined: EncoderFolder):
    with pytest.raises(ValueError, match="manta-joined"):
        SentenceTransformer(str(joined.path), device="cpu")


def test_a_copy_is_the_same_encoder_and_swapped_parts_are_another(joined: EncoderFolder, tmp_path: Path):
    copied = folder_at(copy_listed_files(joined, tmp_path / "copy"))
    assert (copied.space_id, dict(copied.files)) == (joined.space_id, dict(joined.files))
    assert len(joined.weights) == 2
    assert all(joined.file(name).is_file() for name in joined.weights)
    edit_json(copied.path / "config.json", parts=["1_Second", "0_First"])
    swapped = folder_at(copied.path)
    assert swapped.space_id != joined.space_id
    np.testing.assert_array_equal(
        encoder_at(swapped.path).encode(TEXTS), np.roll(encoder_at(joined.path).encode(TEXTS), 48, axis=1)
    )


def test_recurrent_encoders_can_be_concatenated(tmp_path: Path):
    torch.manual_seed(0)
    first = load_trainable(recurrent_folder(tmp_path / "gru", "bigru"))
    second = copy.deepcopy(first).draw()
    whole = encoder_at(save_joined((first, second), tmp_path / "joined").path)
    with torch.no_grad():
        expected = torch.cat(
            [each.eval()(whole.folder.tokenizer()(TEXTS)) for each in (first, second)], dim=1
        ).numpy()
    np.testing.assert_allclose(whole.encode(TEXTS), expected, atol=2e-5)
    assert np.abs(expected[:, : first.dim] - expected[:, first.dim :]).max() > 0.01


def test_settings_apply_to_each_part(joined: EncoderFolder):
    whole = encoder_at(joined.path, normalize=True)
    assert whole.folder.normalize
    assert not joined.normalize
    assert whole.space_id != joined.space_id
    plain = encoder_at(joined.path).encode(TEXTS)
    np.testing.assert_allclose(
        whole.encode(TEXTS), plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6
    )
    first = encoder_at(joined.path, pooling="cls", max_length=8)
    np.testing.assert_array_equal(
        first.encode(TEXTS)[:, :48],
        encoder_at(joined.parts[0].path, pooling="cls", max_length=8).encode(TEXTS),
    )


def test_operations_on_one_encoder_are_refused_naming_a_part(joined: EncoderFolder):
    with pytest.raises(ModelError, match=r"one encoder to train.*2 concatenated encoders.*0_First"):
        load_trainable(joined)
    with pytest.raises(ModelError, match=r"to read its layers.*0_First"):
        encoder_at(joined.path).hidden_states()


def test_parts_that_read_texts_differently_are_refused(joined: EncoderFolder, tmp_path: Path):
    shutil.copytree(joined.path, tmp_path / "copy")
    edit_json(tmp_path / "copy" / "1_Second" / "sentence_bert_config.json", max_seq_length=20)
    with pytest.raises(ModelError, match=r"the same max length as 0_First"):
        open_folder(EncoderSettings(path=str(tmp_path / "copy")))
    first = joined.parts[0]
    check_same_reading(first, replace(first, pooling=("max",)))
    with pytest.raises(ModelError, match="the same pooling as 0_First"):
        check_same_reading(first, replace(first, pooling=("mask",)))
    shutil.rmtree(tmp_path / "copy" / "1_Second")
    with pytest.raises(ModelError, match="names of two or more folders"):
        open_folder(EncoderSettings(path=str(tmp_path / "copy")))


def test_an_existing_folder_is_not_overwritten(pair: Pair, joined: EncoderFolder):
    with pytest.raises(ModelError, match="a new path"):
        save_joined(pair, joined.path)
