"""A recurrent encoder is an encoder like others: trained, saved, encoded with the same bits whatever its
neighbours, refused by who cannot load it.
"""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from pipeline.device import resolve
from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import FIRST, LAST, TABLE, UNKNOWN
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.layers.weights import open_checkpoint
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.heads import TanhHead
from pipeline.models.trainable.new_recurrent import count_words, write_scratch
from pipeline.models.trainable.saving import save_folder
from pipeline.objectives import Batch
from pipeline.objectives.simcse import SimCSE
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.weights import RecurrentSettings
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gradcache import loss_and_backward
from tests.models.folder.wordfiles import minilm_table, write_words
from tests.models.folders import LONG, TEXTS, edit_json
from tests.models.trainable.recurrents import SHAPES, by_equations, recurrent_folder, words

MANY = [" ".join(np.random.default_rng(seed).choice(LONG.split()[:16], 1 + seed % 37)) for seed in range(150)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("recurrent")
    return {shape: recurrent_folder(top / shape, shape) for shape in SHAPES}


def encoder_of(folder, **changes) -> Encoder:
    return load_encoder(EncoderSettings(path=str(folder.path), **changes), EncodeSettings())


@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_are_the_readout_of_the_equations(folders, shape):
    folder, texts = folders[shape], [*TEXTS, LONG]
    encoder, tokens = load_trainable(folder).eval(), folder.tokenizer()(texts)
    read = {
        "last": lambda states: states[-1],
        "ends": lambda states: torch.cat([states[-1, :17], states[0, 17:]]),
        "max": lambda states: states.max(0).values,
        "mean": lambda states: states.mean(0),
        "attentive": lambda states: attention(encoder.backbone.attentive, states),
    }[shape if shape == "attentive" else folder.pooling[0]]
    expected = torch.stack(
        [read(by_equations(encoder.backbone, ids)) for ids in np.split(tokens.ids, tokens.offsets[1:-1])]
    ).detach()
    np.testing.assert_allclose(encoder(tokens).detach(), expected, atol=1e-6)
    reference = encoder_of(folder)
    np.testing.assert_allclose(reference.encode(texts), expected, atol=1e-6)
    np.testing.assert_allclose(reference.encode(texts, query=True), expected, atol=1e-6)
    assert folder.dim == expected.shape[1]


def attention(readout, states):
    """(4 * size,) of one text by the equation."""
    scores = torch.tanh(
        states @ readout.inner.weight.T.to(states) + readout.inner.bias.to(states)
    ) @ readout.contexts.weight.T.to(states)
    return (torch.softmax(scores, dim=0).T @ states).flatten()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_has_the_same_bits_whatever_its_neighbours(folders, shape):
    encoder, texts = encoder_of(folders[shape]), [*TEXTS, *MANY, LONG]
    vectors, shuffled = encoder.encode(texts), np.random.default_rng(0).permutation(len(texts))
    np.testing.assert_array_equal(encoder.encode([texts[place] for place in shuffled]), vectors[shuffled])
    np.testing.assert_array_equal(
        np.concatenate([encoder.encode(texts[place : place + 1]) for place in range(0, len(texts), 9)]),
        vectors[::9],
    )


@pytest.mark.parametrize("shape", ["bigru", "deep", "attentive"])
def test_every_gradient_is_that_of_the_equations(folders, shape):
    encoder = load_trainable(folders[shape])
    rows = [np.array(row) for row in ([1, 5, 9, 2], [1, 2], [1, 7, 5, 5, 8, 2])]
    toward = torch.randn(len(rows), folders[shape].dim, generator=torch.Generator().manual_seed(0))
    encoder.double()
    (encoder(of_ids(rows)) * toward).sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}
    encoder.zero_grad()
    states = [by_equations(encoder.backbone, row) for row in rows]
    half = encoder.backbone.shape.width
    read = {
        "bigru": lambda each: torch.cat([each[-1, :half], each[0, half:]]),
        "deep": lambda each: each.mean(0),
        "attentive": lambda each: attention(encoder.backbone.attentive, each),
    }[shape]
    (torch.stack([read(each) for each in states]) * toward).sum().backward()
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-12, rtol=1e-9, msg=name)


def of_ids(rows) -> Tokens:
    return Tokens(
        np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)]), np.zeros(len(rows), bool)
    )


def test_layers_computed_anew_in_the_backward_pass_have_equal_gradients_under_dropout(folders):
    encoder, tokens = load_trainable(folders["deep"], dropout=0.3), folders["deep"].tokenizer()(MANY[:20])

    def gradients(anew):
        encoder.backbone.checkpointing = anew
        encoder.zero_grad()
        torch.manual_seed(5)
        encoder(tokens).square().sum().backward()
        return [parameter.grad.clone() for parameter in encoder.parameters()]

    assert all(torch.equal(*pair) for pair in zip(gradients(False), gradients(True), strict=True))


def test_half_precision_is_for_the_inputs_alone(folders):
    encoder, tokens = load_trainable(folders["bilstm-max"]), folders["bilstm-max"].tokenizer()(MANY[:9])
    exact = encoder(tokens)
    encoder.backbone.precision = torch.bfloat16
    half = encoder(tokens)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, exact).min() > 0.999
    half.square().sum().backward()
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in encoder.parameters())


def test_chunks_have_the_gradient_of_the_whole_batch(folders):
    folder = folders["bigru"]
    objective = SimCSE(load_trainable(folder, dropout=0.0))
    batch = Batch({"text": MANY[:12]}, np.arange(12), folder.tokenizer())

    def gradients(chunk):
        objective.zero_grad()
        loss_and_backward(objective, batch, chunk_rows=chunk)
        return [parameter.grad.clone() for parameter in objective.parameters() if parameter.grad is not None]

    for whole, parted in zip(gradients(12), gradients(5), strict=True):
        torch.testing.assert_close(parted, whole, atol=1e-6, rtol=1e-5)


def test_dropout_draws_anew_for_each_row_and_from_the_generator_alone(folders):
    encoder, tokens = (
        load_trainable(folders["gru"], dropout=0.2),
        folders["gru"].tokenizer()([TEXTS[0], TEXTS[0]]),
    )
    torch.manual_seed(3)
    first = encoder(tokens)
    torch.manual_seed(3)
    assert torch.equal(first, encoder(tokens))
    assert not torch.equal(first[0], first[1])
    assert torch.equal(*load_trainable(folders["gru"])(tokens))  # as the folder says, there is none


def test_what_it_has_not_is_refused(folders):
    encoder, tokens = load_trainable(folders["gru"]), folders["gru"].tokenizer()(["two dogs"])
    with pytest.raises(ModelError, match="an encoder with positions"):
        encoder(tokens, positions=np.arange(4))
    with pytest.raises(ModelError, match="layers that can be compiled"):
        encoder.backbone.compile_layers()
    for pooling, found in (
        ("cls", "for a recurrent encoder"),
        ("ends", "two directions"),
        ("mask", "for a recurrent encoder"),
    ):
        with pytest.raises(ModelError, match=found):
            open_folder(EncoderSettings(path=str(folders["gru"].path), pooling=pooling))
    with pytest.raises(ModelError, match="an encoder with attention weights"):
        open_folder(EncoderSettings(path=str(folders["attentive"].path), pooling="max"))


def test_a_change_at_the_words_reaches_its_own_text_alone(folders):
    encoder, tokens = (
        load_trainable(folders["bilstm-max"]),
        folders["bilstm-max"].tokenizer()(["two dogs run", "a man reads a book", "x"]),
    )

    def cut(x, where):
        own = where.indices[where.counts[0] : where.counts[:2].sum()]
        return x.index_fill(0, own, 0.0)

    plain, changed = encoder(tokens), encoder(tokens, at_embedding=cut)
    assert torch.equal(plain[[0, 2]], changed[[0, 2]])
    assert not torch.equal(plain[1], changed[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_trained_is_what_is_saved_and_sentence_transformers_says_that_it_cannot_load_it(
    folders, tmp_path, shape
):
    folder = open_folder(EncoderSettings(path=str(folders[shape].path), normalize=True, max_length=20))
    encoder, tokens = load_trainable(folder), folder.tokenizer()([*TEXTS, LONG])
    encoder(tokens).square()[:, 0].sum().backward()
    torch.optim.SGD(encoder.parameters(), lr=1.0).step()
    head = TanhHead(folder.dim)
    saved = save_folder(encoder, folder, tmp_path / "saved", head=head)
    expected = head(encoder.eval()(tokens)).detach()
    np.testing.assert_allclose(encoder_of(saved).encode([*TEXTS, LONG]), expected, atol=1e-6)
    np.testing.assert_allclose(head(load_trainable(folder).eval()(tokens)).detach().numpy()[:0], expected[:0])
    assert saved.space_id not in (folder.space_id, folders[shape].space_id)
    assert (saved.max_length, saved.pooling) == (20, folder.pooling)
    again = save_folder(load_trainable(saved), saved, tmp_path / "again")
    assert again.space_id == saved.space_id
    with pytest.raises(ValueError, match="manta-recurrent"):
        SentenceTransformer(str(saved.path), device="cpu")


def test_its_inside_is_its_words_and_its_layers(folders):
    folder = folders["deep"]
    encoder, inside = load_trainable(folder).eval(), encoder_of(folder).hidden_states()
    tokens, numbers = inside.tokens(TEXTS[:3]), np.array([3, 7, 5])
    np.testing.assert_array_equal(inside.table(numbers), encoder.backbone.words.detach()[numbers])
    [found] = inside.states(tokens)
    assert [layer.shape[1] for layer in found.layers] == [12, 20, 20]
    expected = [
        by_equations(encoder.backbone, ids).detach() for ids in np.split(tokens.ids, tokens.offsets[1:-1])
    ]
    np.testing.assert_allclose(found.layers[2], torch.cat([expected[row] for row in found.rows]), atol=1e-6)
    assert np.add.reduceat(inside.words(tokens).is_word, tokens.offsets[:-1]).tolist() == [
        14,
        3,
        0,
    ]  # no marks, no full stops


def test_a_copy_is_an_encoder_of_its_own(folders):
    encoder, tokens = load_trainable(folders["bigru"]), folders["bigru"].tokenizer()(TEXTS[:3])
    before = encoder(tokens).detach()
    for copied in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(copied(tokens), before)
        assert not torch.equal(copied.draw()(tokens), before)
    assert torch.equal(encoder(tokens), before)


def test_the_vocabulary_has_the_commonest_words_and_one_for_all_others(tmp_path):
    counts = count_words(["the dog, the cat", "The DOG's bone isn't the cat\u2019s", "a well-known tree"])
    assert (counts["the"], counts["dog"], counts["'s"], counts["n't"], counts["well"], counts["-"]) == (
        4,
        2,
        2,
        1,
        1,
        1,
    )
    write_scratch(
        RecurrentSettings(cell="gru", width=3, word_dim=4, vocabulary=5), counts, tmp_path / "new", seed=0
    )
    assert (tmp_path / "new" / "vocab.txt").read_text().split("\n") == [
        UNKNOWN,
        FIRST,
        LAST,
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


def test_counting_forgets_rare_words_before_common_ones():
    texts = ["common usual", *(f"rare{number} usual common common" for number in range(100))]
    counts = count_words(texts, most=10)
    assert len(counts) <= 10
    assert set(counts) >= {"common", "usual"}


def test_fixed_words_are_the_first_of_the_file_and_do_not_move(tmp_path, monkeypatch):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    known, table = minilm_table()
    file = write_words(tmp_path / "words.txt", known, table)
    settings = RecurrentSettings(cell="lstm", width=5, readout="max", words=str(file), vocabulary=200)
    write_scratch(settings, words(), tmp_path / "new", seed=0)
    folder = open_folder(EncoderSettings(path=str(tmp_path / "new")))
    places = folder.tokenizer().vocabulary()
    encoder = load_trainable(folder)
    for word in known[:200]:
        np.testing.assert_array_equal(encoder.backbone.words[places[word]], table[known.index(word)])
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


def test_a_new_encoder_is_that_of_its_seed(tmp_path):
    spaces = []
    for place, seed in enumerate((1, 1, 2)):
        torch.manual_seed(place)
        write_scratch(SHAPES["gru"], words(), tmp_path / str(place), seed=seed)
        spaces.append(open_folder(EncoderSettings(path=str(tmp_path / str(place)))).space_id)
    assert spaces[0] == spaces[1] != spaces[2]


@pytest.mark.parametrize("shape", ["bigru", "bilstm-max"])
def test_new_weights_are_drawn_as_the_cell_begins(tmp_path, shape):
    backbone = load_trainable(recurrent_folder(tmp_path / "new", shape), fresh=True).backbone
    direction, width = backbone.directions[0][1], backbone.shape.width
    assert backbone.words.abs().max() <= 0.1
    assert backbone.words.max() > 0.09
    if shape == "bigru":
        for gate in direction.recurrent.split(width):
            torch.testing.assert_close(gate @ gate.T, torch.eye(width), atol=1e-5, rtol=0)
        assert direction.input.bias is None
    else:
        assert all(
            0.9 * width**-0.5 < parameter.abs().max() <= width**-0.5 for parameter in direction.parameters()
        )


def test_a_folder_that_lacks_something_says_so(tmp_path):
    folder = recurrent_folder(tmp_path / "new", "gru")
    config = json.loads((folder.path / "config.json").read_text())
    for broken, expected in (
        ({"cell": "rnn"}, "a cell among gru, lstm"),
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
