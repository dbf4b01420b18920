"""A recurrent encoder is an encoder like others: trained, saved, encoded with the same bits whatever its
neighbours, refused by libraries that cannot load it.
"""

import copy
import pickle

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.heads import TanhHead
from pipeline.models.trainable.saved_heads import SavedHeads
from pipeline.models.trainable.saving import save_folder
from pipeline.objectives import Batch
from pipeline.objectives.simcse import SimCSE
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import LONG, TEXTS
from tests.models.trainable.layer_calls import layer_calls
from tests.models.trainable.recurrents import SHAPES, by_equations, recurrent_folder

MANY = [" ".join(np.random.default_rng(seed).choice(LONG.split()[:16], 1 + seed % 37)) for seed in range(150)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("recurrent")
    return {shape: recurrent_folder(top / shape, shape) for shape in SHAPES}


def encoder_of(folder, **changes) -> Encoder:
    return load_encoder(EncoderSettings(path=str(folder.path), **changes), EncodeSettings())


@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_equal_the_pooled_states_of_the_equations(folders, shape):
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
    np.testing.assert_array_equal(encoder.encode([texts[row] for row in shuffled]), vectors[shuffled])
    np.testing.assert_array_equal(
        np.concatenate([encoder.encode(texts[row : row + 1]) for row in range(0, len(texts), 9)]),
        vectors[::9],
    )


@pytest.mark.parametrize("shape", ["bigru", "deep", "attentive"])
def test_every_gradient_equals_that_of_the_equations(folders, shape):
    encoder = load_trainable(folders[shape])
    rows = [np.array(row) for row in ([1, 5, 9, 2], [1, 2], [1, 7, 5, 5, 8, 2])]
    direction = torch.randn(len(rows), folders[shape].dim, generator=torch.Generator().manual_seed(0))
    encoder.double()
    (encoder(of_ids(rows)) * direction).sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}
    encoder.zero_grad()
    states = [by_equations(encoder.backbone, row) for row in rows]
    half = encoder.backbone.shape.width
    read = {
        "bigru": lambda each: torch.cat([each[-1, :half], each[0, half:]]),
        "deep": lambda each: each.mean(0),
        "attentive": lambda each: attention(encoder.backbone.attentive, each),
    }[shape]
    (torch.stack([read(each) for each in states]) * direction).sum().backward()
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-12, rtol=1e-9, msg=name)


def of_ids(rows) -> Tokens:
    return Tokens(
        np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)]), np.zeros(len(rows), bool)
    )


def test_checkpointing_computes_layers_again_with_the_same_dropout(folders):
    encoder, tokens = load_trainable(folders["deep"], dropout=0.3), folders["deep"].tokenizer()(MANY[:20])

    def gradients(checkpointing):
        encoder.backbone.checkpointing = checkpointing
        encoder.zero_grad()
        torch.manual_seed(5)
        calls = layer_calls(encoder.backbone, lambda: encoder(tokens).square().sum().backward())
        assert set(calls.values()) == {2 if checkpointing else 1}
        return [parameter.grad.clone() for parameter in encoder.parameters()]

    assert all(torch.equal(*pair) for pair in zip(gradients(False), gradients(True), strict=True))


def test_only_input_projections_run_in_half_precision(folders):
    encoder, tokens = load_trainable(folders["bilstm-max"]), folders["bilstm-max"].tokenizer()(MANY[:9])
    exact = encoder(tokens)
    encoder.backbone.precision = torch.bfloat16
    half = encoder(tokens)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, exact).min() > 0.999
    half.square().sum().backward()
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in encoder.parameters())


def test_chunks_give_the_gradient_of_the_whole_batch(folders):
    folder = folders["bigru"]
    objective = SimCSE(load_trainable(folder, dropout=0.0))
    batch = Batch({"text": MANY[:12]}, np.arange(12), folder.tokenizer())

    def gradients(chunk):
        objective.zero_grad()
        loss_and_backward(objective, batch, chunk_rows=chunk)
        return [parameter.grad.clone() for parameter in objective.parameters() if parameter.grad is not None]

    for whole, parted in zip(gradients(12), gradients(5), strict=True):
        torch.testing.assert_close(parted, whole, atol=1e-6, rtol=1e-5)


def test_dropout_masks_differ_by_row_and_depend_on_the_generator_only(folders):
    encoder, tokens = (
        load_trainable(folders["gru"], dropout=0.2),
        folders["gru"].tokenizer()([TEXTS[0], TEXTS[0]]),
    )
    torch.manual_seed(3)
    first = encoder(tokens)
    torch.manual_seed(3)
    assert torch.equal(first, encoder(tokens))
    assert not torch.equal(first[0], first[1])
    assert torch.equal(*load_trainable(folders["gru"])(tokens))  # the folder sets no dropout


def test_unsupported_features_are_refused(folders):
    encoder, tokens = load_trainable(folders["gru"]), folders["gru"].tokenizer()(["two dogs"])
    with pytest.raises(ModelError, match="an encoder with position embeddings"):
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


def test_a_change_of_word_vectors_affects_its_own_text_only(folders):
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
def test_the_saved_encoder_equals_the_trained_one_and_sentence_transformers_refuses_it(
    folders, tmp_path, shape
):
    folder = open_folder(EncoderSettings(path=str(folders[shape].path), normalize=True, max_length=20))
    encoder, tokens = load_trainable(folder), folder.tokenizer()([*TEXTS, LONG])
    encoder(tokens).square()[:, 0].sum().backward()
    torch.optim.SGD(encoder.parameters(), lr=1.0).step()
    head = TanhHead(folder.dim)
    saved = save_folder(encoder, folder, tmp_path / "saved", SavedHeads(head))
    expected = head(encoder.eval()(tokens)).detach()
    np.testing.assert_allclose(encoder_of(saved).encode([*TEXTS, LONG]), expected, atol=1e-6)
    assert saved.space_id not in (folder.space_id, folders[shape].space_id)
    assert (saved.max_length, saved.pooling) == (20, folder.pooling)
    again = save_folder(load_trainable(saved), saved, tmp_path / "again")
    assert again.space_id == saved.space_id
    with pytest.raises(ValueError, match="manta-recurrent"):
        SentenceTransformer(str(saved.path), device="cpu")


def test_hidden_states_are_those_of_words_and_layers(folders):
    folder = folders["deep"]
    encoder, hidden = load_trainable(folder).eval(), encoder_of(folder).hidden_states()
    tokens, numbers = hidden.tokens(TEXTS[:3]), np.array([3, 7, 5])
    np.testing.assert_array_equal(hidden.table(numbers), encoder.backbone.word_table.detach()[numbers])
    [found] = hidden.states(tokens)
    assert [layer.shape[1] for layer in found.layers] == [12, 20, 20]
    expected = [
        by_equations(encoder.backbone, ids).detach() for ids in np.split(tokens.ids, tokens.offsets[1:-1])
    ]
    np.testing.assert_allclose(found.layers[2], torch.cat([expected[row] for row in found.rows]), atol=1e-6)
    assert np.add.reduceat(hidden.words(tokens).is_word, tokens.offsets[:-1]).tolist() == [
        14,
        3,
        0,
    ]  # no marks, no full stops


def test_a_copy_is_independent(folders):
    encoder, tokens = load_trainable(folders["bigru"]), folders["bigru"].tokenizer()(TEXTS[:3])
    before = encoder(tokens).detach()
    for copied in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(copied(tokens), before)
        assert not torch.equal(copied.draw()(tokens), before)
    assert torch.equal(encoder(tokens), before)
