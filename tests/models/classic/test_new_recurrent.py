"""A new recurrent encoder: its vocabulary, its given word vectors and its initial weights."""

import json

import numpy as np
import pytest
import torch

from pipeline.errors import ModelError
from pipeline.models.classic.new_vocabulary import count_words
from pipeline.models.classic.recurrent import write_recurrent_folder
from pipeline.models.folder.word_vectors import END, START, TABLE, UNKNOWN
from pipeline.models.layers.weights import open_checkpoint
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import save_folder
from pipeline.settings.weights import RecurrentSettings
from tests.models.classic.recurrents import SHAPES, recurrent_folder, word_counts
from tests.models.folder.wordfiles import minilm_table, write_words
from tests.models.folders import TEXTS, edit_json, encoder_at, folder_at
from tests.models.trainable.new_encoders import assert_given_words_are_not_trained


def test_the_vocabulary_has_the_most_frequent_words_and_an_unknown_word(tmp_path):
    counts = count_words(["the dog, the cat", "The DOG's bone isn't the cat\u2019s", "a well-known tree"])
    expected = {"the": 4, "dog": 2, "'s": 2, "n't": 1, "well": 1, "-": 1}
    assert {word: counts[word] for word in expected} == expected
    write_recurrent_folder(
        RecurrentSettings(cell="gru", width=3, word_dim=4, vocabulary=5), counts, tmp_path / "new", seed=0
    )
    vocabulary = (tmp_path / "new" / "vocab.txt").read_text().split("\n")
    assert vocabulary == [UNKNOWN, START, END, "the", "'s", "cat", "dog"]
    tokens = folder_at(tmp_path / "new").tokenizer()(["The tree's DOG", "", "<s> <unk>"])
    assert [[vocabulary[number] for number in ids] for ids in np.split(tokens.ids, tokens.offsets[1:-1])] == [
        [START, "the", UNKNOWN, "'s", "dog", END],
        [START, END],
        [START, *6 * [UNKNOWN], END],  # "<", "s", ">", "<", "unk" and ">"
    ]


def test_counts_of_rare_words_are_dropped_first():
    texts = ["common usual", *(f"rare{number} usual common common" for number in range(100))]
    counts = count_words(texts, most=10)
    assert len(counts) <= 10
    assert set(counts) >= {"common", "usual"}


@pytest.mark.usefixtures("cache")
def test_given_words_are_the_first_of_the_file_and_are_not_trained(tmp_path):
    known, table = minilm_table()
    file = write_words(tmp_path / "words.txt", known, table)
    settings = RecurrentSettings(cell="lstm", width=5, readout="max", words=str(file), vocabulary=200)
    write_recurrent_folder(settings, word_counts(), tmp_path / "new", seed=0)
    folder = folder_at(tmp_path / "new")
    unknown = next(word for word in known[200:] if word.isalpha())
    # the start token, one word and the end token
    assert folder.tokenizer()([f"{known[30]} {unknown}"]).lengths.tolist() == [3]
    encoder = assert_given_words_are_not_trained(folder)
    redrawn = save_folder(encoder.draw(), folder, tmp_path / "saved")
    for name in (TABLE, "directions.0.0.recurrent"):
        before, after = (open_checkpoint(each).raw(name) for each in (folder, redrawn))
        assert torch.equal(before, after) == (name == TABLE)
    expected = encoder.eval()(folder.tokenizer()(TEXTS)).detach()
    np.testing.assert_allclose(encoder_at(redrawn.path).encode(TEXTS), expected, atol=1e-6)


def test_new_weights_follow_from_the_seed_alone(tmp_path):
    spaces = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)
        write_recurrent_folder(SHAPES["gru"], word_counts(), tmp_path / str(number), seed=seed)
        spaces.append(folder_at(tmp_path / str(number)).space_id)
    assert spaces[0] == spaces[1] != spaces[2]


@pytest.mark.parametrize("shape", ["bigru", "bilstm-max"])
def test_new_weights_have_the_distribution_of_their_cell(tmp_path, shape):
    backbone = load_trainable(recurrent_folder(tmp_path / "new", shape), fresh=True).backbone
    direction, width = backbone.directions[0][1], backbone.shape.width
    assert backbone.word_table.abs().max() <= 0.1
    assert backbone.word_table.max() > 0.09
    if shape == "bigru":
        for gate in direction.recurrent.split(width):
            torch.testing.assert_close(gate @ gate.T, torch.eye(width), atol=1e-5, rtol=0)
        assert direction.input.bias is None
    else:
        for parameter in direction.parameters():
            assert 0.9 * width**-0.5 < parameter.abs().max() <= width**-0.5


def test_an_invalid_or_missing_key_of_the_config_is_named(tmp_path):
    folder = recurrent_folder(tmp_path / "new", "gru")
    config = json.loads((folder.path / "config.json").read_text())
    for invalid, message in (
        ({"cell": "rnn"}, "one of the cells gru, lstm"),
        ({"hidden_size": 30}, "belong together"),
        ({"vocab_size": 5}, "belong together"),
    ):
        edit_json(folder.path / "config.json", **config | invalid)
        with pytest.raises(ModelError, match=message):
            load_trainable(folder_at(folder.path))
    edit_json(folder.path / "config.json", **config | {"cell": ...})
    with pytest.raises(ModelError, match="no cell"):
        encoder_at(folder.path)
