"""Write folders of new convolutional encoders: new weights, and a vocabulary from texts or word vectors."""

from collections import Counter
from pathlib import Path

import torch

from pipeline.models.folder.word_vectors import CONVOLUTIONAL
from pipeline.models.trainable.convolutional import ConvolutionalBackbone, ConvolutionalShape
from pipeline.models.trainable.new_vocabulary import new_vocabulary, write_new_encoder, write_pooling
from pipeline.settings.weights import ConvolutionalSettings

FORMAT = 1  # version of the folders; raise it when they are written differently


def write_convolutional_folder(
    settings: ConvolutionalSettings, counts: Counter[str], folder: Path, *, seed: int
) -> None:
    """Write the folder of a new convolutional encoder, with the pooling max.

    Args:
        settings: shape of the encoder, and the file of word vectors, if any.
        counts: counts of the words to learn vectors for; not used with a file of word vectors.
        folder: folder to write to.
        seed: seed of the weights.

    Raises:
        ConfigError: there is no file of word vectors.
        ModelError: the file of word vectors cannot be read, or `counts` is empty.
    """
    assert settings.width is not None, "the caller asks for a new encoder"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        words = new_vocabulary(settings, counts)
        shape = ConvolutionalShape(
            width=settings.width,
            layers=settings.layers,
            vocabulary=len(words.tokens),
            word_dim=words.dim(settings),
            learned=words.table is None,
            dropout=0.0,
        )
        with torch.device("meta"):
            backbone = ConvolutionalBackbone(shape, str(folder))
        backbone.to_empty(device="cpu").draw()
    config = {
        "model_type": CONVOLUTIONAL,
        "hidden_size": shape.output_width,
        "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocabulary,
        "embedding_size": shape.word_dim,
        "learned_words": shape.learned,
        "dropout": shape.dropout,
        "format": FORMAT,
    }
    write_new_encoder(backbone, words, config, folder)
    write_pooling(folder, shape.output_width, "max")
