"""Write folders of new recurrent encoders: new weights, and a vocabulary from texts or word vectors."""

from collections import Counter
from pathlib import Path

import torch

from pipeline.errors import ConfigError
from pipeline.models.folder.word_vectors import RECURRENT
from pipeline.models.layers.recurrence import CELLS
from pipeline.models.trainable.new_vocabulary import new_vocabulary, write_new_encoder, write_pooling
from pipeline.models.trainable.recurrent import RecurrentBackbone, RecurrentShape
from pipeline.settings.weights import RecurrentSettings

FORMAT = 1  # version of the folders; raise it when they are written differently
_CONTEXTS = 4  # weighted sums of the attention pooling, as in Conneau et al. 2017


def write_recurrent_folder(
    settings: RecurrentSettings, counts: Counter[str], folder: Path, *, seed: int
) -> None:
    """Write the folder of a new recurrent encoder.

    Args:
        settings: shape of the encoder, and the file of word vectors, if any.
        counts: counts of the words to learn vectors for; not used with a file of word vectors.
        folder: folder to write to.
        seed: seed of the weights.

    Raises:
        ConfigError: no cell is named, or there is no file of word vectors.
        ModelError: the file of word vectors cannot be read, or `counts` is empty.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        words = new_vocabulary(settings, counts)
        shape = _shape(settings, len(words.tokens), words.dim(settings))
        with torch.device("meta"):
            backbone = RecurrentBackbone(shape, str(folder))
        backbone.to_empty(device="cpu").draw()
    write_new_encoder(backbone, words, _config(shape), folder)
    poolings = {"last": "lasttoken" if settings.directions == 1 else "ends", "attention": "mean"}
    write_pooling(folder, shape.output_width, poolings.get(settings.readout, settings.readout))


def _config(shape: RecurrentShape) -> dict[str, object]:
    return {
        "model_type": RECURRENT,
        "cell": shape.cell,
        "hidden_size": shape.output_width,
        "directions": shape.directions,
        "num_hidden_layers": shape.layers,
        "contexts": shape.contexts,
        "vocab_size": shape.vocabulary,
        "embedding_size": shape.word_dim,
        "learned_words": shape.learned,
        "dropout": shape.dropout,
        "format": FORMAT,
    }


def _shape(settings: RecurrentSettings, vocabulary: int, word_dim: int) -> RecurrentShape:
    """Return the shape of the encoder. Raises ConfigError if the settings name no cell."""
    if settings.cell is None:
        raise ConfigError("train.recurrent.cell", f"one of {', '.join(CELLS)}", "null", "set it to one")
    return RecurrentShape(
        cell=settings.cell,
        width=settings.width,
        directions=settings.directions,
        layers=settings.layers,
        vocabulary=vocabulary,
        word_dim=word_dim,
        learned=settings.words is None,
        dropout=0.0,
        contexts=_CONTEXTS if settings.readout == "attention" else 0,
    )
