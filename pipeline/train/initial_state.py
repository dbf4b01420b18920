"""The encoder that a training starts from: the configured one, or a new one; made without a cluster."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from pipeline.config import digest_of
from pipeline.log import announce
from pipeline.models.classic import convolutional, dan, paragraph, recurrent, word_table
from pipeline.models.classic.new_vocabulary import count_words, word_vector_folder
from pipeline.models.folder.locate import cached_folder
from pipeline.models.folder.word_vectors import FORMAT as WORDS_FORMAT
from pipeline.models.trainable import new_transformer
from pipeline.objectives.build import data_requirements
from pipeline.settings import EncoderSettings
from pipeline.settings.training import TEXTS, SourceSettings, TrainSettings
from pipeline.settings.weights import NewEncoderSettings, VocabularySettings
from pipeline.store.files.cache import digest_of_file
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows, training_files

_WORD_VECTOR_FILES = ("vocab.txt", "model.safetensors", "sentence_bert_config.json")


class _NewEncoder(NamedTuple):
    """Recipe for new encoders of one kind."""

    cache: str
    """subfolder of this machine's cache"""
    file_format: int
    """version of the folders' format, raised whenever `write` writes them differently"""
    write: Callable[..., None]
    """called with settings, word counts, folder and seed"""
    needs_rows: bool = False
    """True if `write` also takes the number of training rows"""


# Recipes by `NewEncoderSettings.kind`.
_NEW_ENCODERS = {
    "recurrent": _NewEncoder("recurrent", recurrent.FORMAT, recurrent.write_recurrent_folder),
    "convolutional": _NewEncoder(
        "convolutional", convolutional.FORMAT, convolutional.write_convolutional_folder
    ),
    "dan": _NewEncoder("dan", dan.FORMAT, dan.write_dan_folder),
    "transformer": _NewEncoder(
        "transformer", new_transformer.FORMAT, new_transformer.write_transformer_folder
    ),
    "word_table": _NewEncoder("words", WORDS_FORMAT, word_table.write_word_table_folder),
    "paragraph_vectors": _NewEncoder(
        "paragraphs", paragraph.FORMAT, paragraph.write_paragraph_folder, needs_rows=True
    ),
}


def starting_encoder(train: TrainSettings, encoder: EncoderSettings) -> EncoderSettings:
    """Return `encoder`, or the new encoder of `TrainSettings.new_encoder`.

    A new encoder is built in this machine's cache, once for each set of settings and files. Its vocabulary
    comes from a file of word vectors, or else from the words of the training rows, counted in one streaming
    pass.

    Raises:
        ConfigError, DataError, ModelError: as in `open_training_rows` and the function that writes the
            folder of the new encoder.
    """
    settings = train.new_encoder
    if settings is None:
        return encoder
    kind = _NEW_ENCODERS[settings.kind]

    def build(folder: Path) -> None:
        rows = {"rows": _count_rows(train)} if kind.needs_rows else {}
        kind.write(settings, _count_words(train, settings), folder, seed=train.seed, **rows)

    folder = cached_folder(kind.cache, _version(train, settings, kind.file_format), build)
    return encoder.model_copy(update={"path": str(folder)})


def _version(train: TrainSettings, settings: NewEncoderSettings, file_format: int) -> str:
    """Return a digest of everything that decides the new encoder."""
    described, vocabulary_source = settings.model_dump(mode="json"), _training_files(train)
    if isinstance(settings, VocabularySettings):
        path = described.pop("words")  # the file's content is part of the digest instead of its path
        if path is not None:
            folder = word_vector_folder(settings)
            vocabulary_source = [digest_of_file(folder / name) for name in _WORD_VECTOR_FILES]
    return digest_of(
        {
            "format": file_format,
            "settings": described,
            "seed": train.seed,
            "torch": torch.__version__,
            "of": vocabulary_source,
        }
    )


def _count_words(train: TrainSettings, settings: NewEncoderSettings) -> Counter[str]:
    """Count the words of the training rows, unless the vocabulary comes from a file of word vectors."""
    if isinstance(settings, VocabularySettings) and settings.words is not None:
        return Counter()
    announce("counting the words of the training rows; this is done once per machine")
    return count_words(_texts(train))


def _count_rows(train: TrainSettings) -> int:
    """Count the rows of all sources, including rows that are not trained on: all rows are numbered."""
    return sum(_open(train, source).counts["rows"] for source in train.data)


def _texts(train: TrainSettings) -> Iterator[str]:
    """Yield every text that the objectives read."""
    for source in train.data:
        pairs = _open(train, source)
        roles = [role for role in pairs.roles if role in TEXTS]
        for table in pairs.read(pairs.spans(), roles):
            for role in roles:
                yield from table[role].to_pylist()


def _training_files(train: TrainSettings) -> list[object]:
    """Return everything that decides which texts are read: roles, settings of the sources, and files."""
    return [
        [
            data_requirements(train.of_source(source))[:2],
            source.identity_settings(without="weight"),
            [[file.name, file.size, file.stamp] for file in training_files(source.uri)],
        ]
        for source in train.data
    ]


def _open(train: TrainSettings, source: SourceSettings) -> TrainingRows:
    """Open the rows of a source, with the roles that the objectives read."""
    required = data_requirements(train.of_source(source))
    return open_training_rows(source, required.columns, required.optional)
