"""A recurrent encoder computes its equations, and is trained, saved and used like other encoders."""

import copy
import pickle

import numpy as np
import pytest
import torch

from pipeline.errors import ModelError
from pipeline.models.classic.recurrence import AttentionPooling
from pipeline.models.layers.post_pooling import TanhHead
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import Batch
from pipeline.objectives.simcse import SimCSE
from pipeline.train.gradcache import loss_and_backward
from tests.models.classic.recurrents import SHAPES, by_equations, recurrent_folder
from tests.models.folders import LONG, TEXTS, encoder_at, folder_at
from tests.models.trainable.layer_calls import assert_checkpointing_is_exact
from tests.models.trainable.new_encoders import (
    assert_bits_do_not_depend_on_the_batch,
    assert_saved_as_trained,
)
from tests.models.trainable.padded import many, packed_ids


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("recurrent")
    return {shape: recurrent_folder(top / shape, shape) for shape in SHAPES}


def vector_by_equations(encoder: TrainableEncoder, ids: np.ndarray) -> torch.Tensor:
    """Pool the states of one text, which are computed by the equations of the cell, in float64."""
    states = by_equations(encoder.backbone, ids)
    width = encoder.backbone.shape.width
    if encoder.backbone.attentive is not None:
        return attention(encoder.backbone.attentive, states)
    [pooling] = encoder.folder.pooling
    return {
        "last": lambda: states[-1],
        "ends": lambda: torch.cat([states[-1, :width], states[0, width:]]),
        "max": lambda: states.max(0).values,
        "mean": lambda: states.mean(0),
    }[pooling]()


def attention(layer: AttentionPooling, states: torch.Tensor) -> torch.Tensor:
    """Pool the states of one text by the published equation, (contexts * size,)."""
    inner = torch.tanh(states @ layer.inner.weight.T.to(states) + layer.inner.bias.to(states))
    scores = inner @ layer.contexts.weight.T.to(states)
    return (torch.softmax(scores, dim=0).T @ states).flatten()


@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_equal_the_pooled_states_of_the_equations(folders, shape):
    folder, texts = folders[shape], [*TEXTS, LONG]
    encoder, tokens = load_trainable(folder).eval(), folder.tokenizer()(texts)
    assert (encoder.backbone.attentive is not None) == (shape == "attentive")
    rows = np.split(tokens.ids, tokens.offsets[1:-1])
    expected = torch.stack([vector_by_equations(encoder, ids) for ids in rows]).detach()
    np.testing.assert_allclose(encoder(tokens).detach(), expected, atol=1e-6)
    for query in (False, True):
        found = encoder_at(folder.path).encode(texts, query=query)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert folder.dim == expected.shape[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_bits_of_a_text_do_not_depend_on_its_batch(folders, shape):
    assert_bits_do_not_depend_on_the_batch(folders[shape])


@pytest.mark.parametrize("shape", ["bigru", "deep", "attentive"])
def test_every_gradient_equals_that_of_the_equations(folders, shape):
    encoder = load_trainable(folders[shape])
    rows = [np.array(row) for row in ([1, 5, 9, 2], [1, 2], [1, 7, 5, 5, 8, 2])]
    direction = torch.randn(len(rows), folders[shape].dim, generator=torch.Generator().manual_seed(0))
    encoder.double()
    (encoder(packed_ids(rows)) * direction).sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}
    encoder.zero_grad()
    expected = torch.stack([vector_by_equations(encoder, row) for row in rows])
    (expected * direction).sum().backward()
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-12, rtol=1e-9, msg=name)


def test_checkpointing_computes_layers_again_with_the_same_dropout(folders):
    encoder = load_trainable(folders["deep"], dropout=0.3)
    assert_checkpointing_is_exact(encoder, folders["deep"].tokenizer()(many(20)))


def test_only_input_projections_run_in_half_precision(folders):
    encoder, tokens = load_trainable(folders["bilstm-max"]), folders["bilstm-max"].tokenizer()(many(9))
    exact = encoder(tokens)
    encoder.backbone.precision = torch.bfloat16
    half = encoder(tokens)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, exact).min() > 0.999
    half.square().sum().backward()
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in encoder.parameters())


def test_a_batch_in_chunks_has_the_gradient_of_the_whole_batch(folders):
    folder = folders["bigru"]
    objective = SimCSE(load_trainable(folder, dropout=0.0))
    batch = Batch({"text": many(12)}, np.arange(12), folder.tokenizer())

    def gradients(chunk):
        objective.zero_grad()
        loss_and_backward(objective, batch, chunk_rows=chunk)
        return [parameter.grad.clone() for parameter in objective.parameters() if parameter.grad is not None]

    for whole, in_chunks in zip(gradients(12), gradients(5), strict=True):
        assert whole.any()
        torch.testing.assert_close(in_chunks, whole, atol=1e-6, rtol=1e-5)


def test_dropout_masks_differ_by_row_and_follow_from_the_generator(folders):
    encoder, tokens = load_trainable(folders["gru"], dropout=0.2), folders["gru"].tokenizer()(2 * [TEXTS[0]])
    torch.manual_seed(3)
    first = encoder(tokens)
    torch.manual_seed(3)
    assert torch.equal(first, encoder(tokens))
    assert not torch.equal(first[0], first[1])
    assert torch.equal(*load_trainable(folders["gru"])(tokens)), "the folder sets no dropout"


def test_unsupported_features_are_refused(folders):
    encoder, tokens = load_trainable(folders["gru"]), folders["gru"].tokenizer()(["two dogs"])
    with pytest.raises(ModelError, match="an encoder with position embeddings"):
        encoder(tokens, positions=np.arange(4))
    with pytest.raises(ModelError, match="layers that can be compiled"):
        encoder.backbone.compile_layers()
    for pooling, message in (
        ("cls", "for a recurrent encoder"),
        ("ends", "two directions"),
        ("mask", "for a recurrent encoder"),
    ):
        with pytest.raises(ModelError, match=message):
            folder_at(folders["gru"].path, pooling=pooling)
    with pytest.raises(ModelError, match="an encoder with attention weights"):
        folder_at(folders["attentive"].path, pooling="max")


def test_a_change_of_word_vectors_affects_its_own_text_only(folders):
    encoder = load_trainable(folders["bilstm-max"])
    tokens = encoder.folder.tokenizer()(["two dogs run", "a man reads a book", "x"])

    def zero(x, where):
        """Set the word vectors of the second text to zero."""
        second = where.indices[where.counts[0] : where.counts[:2].sum()]
        return x.index_fill(0, second, 0.0)

    plain, changed = encoder(tokens), encoder(tokens, at_embedding=zero)
    assert torch.equal(plain[[0, 2]], changed[[0, 2]])
    assert not torch.equal(plain[1], changed[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_saved_encoder_equals_the_trained_one_and_sentence_transformers_refuses_it(
    folders, tmp_path, shape
):
    folder = folders[shape]
    assert_saved_as_trained(folder, tmp_path, "manta-recurrent", TanhHead(folder.dim))


def test_hidden_states_are_those_of_words_and_layers(folders):
    folder = folders["deep"]
    encoder, hidden = load_trainable(folder).eval(), encoder_at(folder.path).hidden_states()
    tokens, ids = hidden.tokens(TEXTS[:3]), np.array([3, 7, 5])
    np.testing.assert_array_equal(hidden.table(ids), encoder.backbone.word_table.detach()[ids])
    [found] = hidden.states(tokens)
    assert [layer.shape[1] for layer in found.layers] == [12, 20, 20]
    expected = [
        by_equations(encoder.backbone, ids).detach() for ids in np.split(tokens.ids, tokens.offsets[1:-1])
    ]
    np.testing.assert_allclose(found.layers[2], torch.cat([expected[row] for row in found.rows]), atol=1e-6)
    # start and end tokens, and full stops, are not words
    words_by_text = np.add.reduceat(hidden.words(tokens).is_word, tokens.offsets[:-1])
    assert words_by_text.tolist() == [14, 3, 0]


def test_a_copy_is_independent(folders):
    encoder, tokens = load_trainable(folders["bigru"]), folders["bigru"].tokenizer()(TEXTS[:3])
    before = encoder(tokens).detach()
    for copied in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(copied(tokens), before)
        assert not torch.equal(copied.draw()(tokens), before)
    assert torch.equal(encoder(tokens), before)
