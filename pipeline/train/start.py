"""Encoder that a training starts from: the configured one, or a new recurrent one."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from pipeline.config import digest_of
from pipeline.log import say
from pipeline.models.folder.locate import cached_folder
from pipeline.models.trainable.new_recurrent import FORMAT, count_words, folder_of_words, write_scratch
from pipeline.objectives.build import data_requirements
from pipeline.settings import EncoderSettings
from pipeline.settings.training import TEXTS, TrainSettings
from pipeline.store.cache import digest_of_file
from pipeline.text.rows.pairs import open_training_rows, training_files

# files of a folder of word vectors
_OF_WORDS = ("vocab.txt", "model.safetensors", "sentence_bert_config.json")


def starting_encoder(train: TrainSettings, encoder: EncoderSettings) -> EncoderSettings:
    """Return `encoder`, or the new encoder of `train.recurrent`.

    The new encoder is built in this machine's cache, once per settings and files, with one pass over the
    texts of the training rows, which are not all in memory.

    Raises:
        ConfigError, DataError: as in `open_training_rows` and `write_scratch`.
    """
    if train.recurrent.cell is None:
        return encoder
    settings = train.recurrent

    def build(folder: Path) -> None:
        if settings.words is None:
            say("counting the words of the training rows; this is done once per machine")
        counts = count_words(_texts(train)) if settings.words is None else Counter()
        write_scratch(settings, counts, folder, seed=train.seed)

    if settings.words is None:
        origin = _files(train)
    else:
        folder = folder_of_words(settings.words)
        origin = [digest_of_file(folder / name) for name in _OF_WORDS]
    version = digest_of(
        {
            "format": FORMAT,
            "settings": settings.model_dump(mode="json", exclude={"words"}),
            "seed": train.seed,
            "torch": torch.__version__,
            "of": origin,
        }
    )
    return encoder.model_copy(update={"path": str(cached_folder("recurrent", version, build))})


def _texts(train: TrainSettings) -> Iterator[str]:
    """Yield every text that the objectives read."""
    columns, optional, _ = data_requirements(train)
    for source in train.data:
        pairs = open_training_rows(source, columns, optional)
        roles = [role for role in pairs.roles if role in TEXTS]
        for piece in pairs.read(pairs.spans(), roles):
            for role in roles:
                yield from piece[role].to_pylist()


def _files(train: TrainSettings) -> list[object]:
    columns, optional, _ = data_requirements(train)
    stamps = [
        [
            source.defining("weight"),
            [[file.name, file.size, file.stamp] for file in training_files(source.uri)],
        ]
        for source in train.data
    ]
    return [columns, optional, stamps]
