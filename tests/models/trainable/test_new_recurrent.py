"""A recurrent encoder with new weights: its vocabulary, its fixed word vectors and its initial weights."""

import json

import numpy as np
import pytest
import torch

from pipeline.device import resolve
from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import END, START, TABLE, UNKNOWN
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.layers.weights import open_checkpoint
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.new_recurrent import write_recurrent_folder
from pipeline.models.trainable.new_vocabulary import count_words
from pipeline.models.trainable.saving import save_folder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.weights import RecurrentSettings
from tests.models.folder.wordfiles import minilm_table, write_words
from tests.models.folders import TEXTS, edit_json
from tests.models.trainable.recurrents import SHAPES, recurrent_folder, word_counts


def encoder_of(folder, **changes) -> Encoder:
    return load_encoder(EncoderSettings(path=str(folder.path), **changes), EncodeSettings())


def test_the_vocabulary_has_the_most_frequent_words_and_an_unknown_word(tmp_path):
    counts = count_words(["the dog, the cat", "The DOG's bone isn't the cat\u2019s", "a well-known tree"])
    assert (counts["the"], counts["dog"], counts["'s"], counts["n't"], counts["well"], counts["-"]) == (
        4,
        2,
        2,
        1,
        1,
        1,
    )
    write_recurrent_folder(
        RecurrentSettings(cell="gru", width=3, word_dim=4, vocabulary=5), counts, tmp_path / "new", seed=0
    )
    assert (tmp_path / "new" / "vocab.txt").read_text().split("\n") == [
        UNKNOWN,
        START,
        END,
        "the",
        "'s",
        "cat",
        "dog",
    ]
    tokenizer = open_folder(EncoderSettings(path=str(tmp_path / "new"))).tokenizer()
    assert tokenizer(["The tree's DOG", "", "<s> <unk>"]).ids.tolist() == [
        1,
        3,
        0,
        4,
        6,
        2,
        1,
        2,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
        2,
    ]


def test_counting_drops_rare_words_first():
    texts = ["common usual", *(f"rare{number} usual common common" for number in range(100))]
    counts = count_words(texts, most=10)
    assert len(counts) <= 10
    assert set(counts) >= {"common", "usual"}


def test_fixed_words_are_the_first_of_the_file_and_are_not_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    known, table = minilm_table()
    file = write_words(tmp_path / "words.txt", known, table)
    settings = RecurrentSettings(cell="lstm", width=5, readout="max", words=str(file), vocabulary=200)
    write_recurrent_folder(settings, word_counts(), tmp_path / "new", seed=0)
    folder = open_folder(EncoderSettings(path=str(tmp_path / "new")))
    places = folder.tokenizer().vocabulary()
    encoder = load_trainable(folder)
    for word in known[:200]:
        np.testing.assert_array_equal(encoder.backbone.word_table[places[word]], table[known.index(word)])
    unknown = next(word for word in known[200:] if word.isalpha())
    assert folder.tokenizer()([f"{known[30]} {unknown}"]).lengths.tolist() == [3]  # two marks and one word
    encoder(folder.tokenizer()(TEXTS)).sum().backward()
    assert [name for name, parameter in encoder.named_parameters() if parameter.grad is None] == [
        f"backbone.{TABLE}"
    ]
    moved = save_folder(encoder.draw(), folder, tmp_path / "saved")
    for name in (TABLE, "directions.0.0.recurrent"):
        before, after = (open_checkpoint(each).raw(name) for each in (folder, moved))
        assert torch.equal(before, after) == (name == TABLE)
    np.testing.assert_allclose(
        encoder_of(moved).encode(TEXTS), encoder.eval()(folder.tokenizer()(TEXTS)).detach(), atol=1e-6
    )


def test_equal_seeds_give_equal_new_encoders(tmp_path):
    spaces = []
    for place, seed in enumerate((1, 1, 2)):
        torch.manual_seed(place)
        write_recurrent_folder(SHAPES["gru"], word_counts(), tmp_path / str(place), seed=seed)
        spaces.append(open_folder(EncoderSettings(path=str(tmp_path / str(place)))).space_id)
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
        assert all(
            0.9 * width**-0.5 < parameter.abs().max() <= width**-0.5 for parameter in direction.parameters()
        )


def test_a_missing_file_or_setting_is_named(tmp_path):
    folder = recurrent_folder(tmp_path / "new", "gru")
    config = json.loads((folder.path / "config.json").read_text())
    for broken, expected in (
        ({"cell": "rnn"}, "one of the cells gru, lstm"),
        ({"hidden_size": 30}, "belong together"),
        ({"vocab_size": 5}, "belong together"),
    ):
        edit_json(folder.path / "config.json", **config | broken)
        with pytest.raises(ModelError, match=expected):
            load_trainable(open_folder(EncoderSettings(path=str(folder.path))))
    (folder.path / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if key != "cell"})
    )
    with pytest.raises(ModelError, match="no cell"):
        Encoder(open_folder(EncoderSettings(path=str(folder.path))), EncodeSettings(), resolve("cpu"))
