"""Write folders of new deep averaging networks: new weights, and a vocabulary from texts or word vectors."""

from collections import Counter
from pathlib import Path

import torch

from pipeline.models.folder.word_vectors import DAN
from pipeline.models.trainable.dan import DanBackbone, DanShape
from pipeline.models.trainable.heads import new_dense
from pipeline.models.trainable.new_vocabulary import new_vocabulary, write_new_encoder, write_pooling
from pipeline.settings.weights import DanSettings

FORMAT = 1  # version of the folders; raise it when they are written differently


def write_dan_folder(settings: DanSettings, counts: Counter[str], folder: Path, *, seed: int) -> None:
    """Write the folder of a new deep averaging network: the pooling mean, then dense layers.

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
        shape = DanShape(
            vocabulary=len(words.tokens),
            word_dim=words.dim(settings),
            buckets=settings.buckets,
            learned=words.table is None,
            dropout=0.0,
        )
        with torch.device("meta"):
            backbone = DanBackbone(shape, str(folder))
        backbone.to_empty(device="cpu").draw()
        inputs = [shape.word_dim, *[settings.width] * (settings.layers - 1)]
        layers = [new_dense(size, settings.width, "Tanh") for size in inputs]
    config = {
        "model_type": DAN,
        "hidden_size": shape.word_dim,
        "vocab_size": shape.vocabulary,
        "bigram_buckets": shape.buckets,
        "learned_words": shape.learned,
        "dropout": shape.dropout,
        "format": FORMAT,
    }
    write_new_encoder(backbone, words, config, folder)
    write_pooling(folder, shape.word_dim, "mean", layers)
