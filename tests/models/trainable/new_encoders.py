"""Checks that new encoders of every architecture have to pass."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.word_vectors import TABLE
from pipeline.models.inference.encoder import Encoder
from pipeline.models.layers.post_pooling import TanhHead
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.models.trainable.saving import SavedHeads, save_folder
from tests.models.folder.wordfiles import minilm_table
from tests.models.folders import LONG, TEXTS, encoder_at, folder_at
from tests.models.trainable.padded import many


def assert_bits_do_not_depend_on_the_batch(folder: EncoderFolder) -> Encoder:
    """Encode texts together, in another order and one by one. Returns the encoder."""
    encoder, texts = encoder_at(folder.path), [*TEXTS, *many(150), LONG]
    vectors, order = encoder.encode(texts), np.random.default_rng(0).permutation(len(texts))
    np.testing.assert_array_equal(encoder.encode([texts[row] for row in order]), vectors[order])
    alone = [encoder.encode(texts[row : row + 1]) for row in range(0, len(texts), 9)]
    np.testing.assert_array_equal(np.concatenate(alone), vectors[::9])
    return encoder


def assert_saved_as_trained(
    folder: EncoderFolder, path: Path, model_type: str, head: TanhHead | None = None
) -> None:
    """Train an encoder for one step, save it with its head below `path` and compare the vectors."""
    opened = folder_at(folder.path, normalize=True, max_length=20)
    encoder, texts = load_trainable(opened), [*TEXTS, LONG]
    tokens = opened.tokenizer()(texts)
    encoder(tokens).square()[:, 1].sum().backward()
    torch.optim.SGD(encoder.parameters(), lr=1.0).step()
    saved = save_folder(encoder, opened, path / "saved", SavedHeads(head))
    with torch.no_grad():
        trained = encoder.eval()(tokens)
        expected = trained if head is None else head(trained)
    np.testing.assert_allclose(encoder_at(saved.path).encode(texts), expected, atol=1e-6)
    untrained = encoder_at(opened.path, normalize=True, max_length=20).encode(texts)
    assert np.abs(untrained - trained.numpy()).max() > 1e-3
    assert (saved.max_length, saved.pooling) == (20, folder.pooling)
    assert saved.space_id not in (opened.space_id, folder.space_id)
    assert save_folder(load_trainable(saved), saved, path / "again").space_id == saved.space_id
    with pytest.raises(ValueError, match=model_type):
        SentenceTransformer(str(saved.path), device="cpu")


def assert_given_words_are_not_trained(folder: EncoderFolder) -> TrainableEncoder:
    """Check that the vectors of 200 words of the packaged MiniLM are in the table and get no gradient.

    Returns the encoder, whose other weights have gradients.
    """
    words, table = minilm_table()
    encoder, rows = load_trainable(folder), folder.tokenizer().vocabulary()
    for row, word in enumerate(words[:200]):
        np.testing.assert_array_equal(encoder.backbone.word_table[rows[word]], table[row])
    encoder(folder.tokenizer()(TEXTS)).sum().backward()
    without_gradient = [name for name, parameter in encoder.named_parameters() if parameter.grad is None]
    assert without_gradient == [f"backbone.{TABLE}"]
    return encoder
