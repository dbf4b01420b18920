"""The encoder that a training starts from: the configured one, or a new one."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from pipeline.config import digest_of
from pipeline.log import say
from pipeline.models.folder.locate import cached_folder
from pipeline.models.folder.paragraphs import FORMAT as PARAGRAPHS_FORMAT
from pipeline.models.folder.word_vectors import FORMAT as WORDS_FORMAT
from pipeline.models.trainable import new_convolutional, new_dan, new_recurrent, new_transformer
from pipeline.models.trainable.new_paragraph import write_paragraph_folder
from pipeline.models.trainable.new_vocabulary import count_words, word_vector_folder
from pipeline.models.trainable.new_word_table import write_word_table_folder
from pipeline.objectives.build import data_requirements
from pipeline.settings import EncoderSettings
from pipeline.settings.training import TEXTS, PairSettings, TrainSettings
from pipeline.settings.weights import VocabularySettings
from pipeline.store.cache import digest_of_file
from pipeline.text.rows.pairs import TrainingRows, open_training_rows, training_files

_WORD_VECTOR_FILES = ("vocab.txt", "model.safetensors", "sentence_bert_config.json")


def starting_encoder(train: TrainSettings, encoder: EncoderSettings) -> EncoderSettings:
    """Return `encoder`, or the new encoder that `TrainSettings.new_encoder` names.

    A new encoder is built in this machine's cache, once for each set of settings and files. Its vocabulary is
    that of a file of word vectors, or else the words of the training rows, counted in one streaming pass.

    Raises:
        ConfigError, DataError, ModelError: as in `open_training_rows`, `write_recurrent_folder`,
            `write_convolutional_folder`, `write_dan_folder`, `write_transformer_folder`,
            `write_word_table_folder` and `write_paragraph_folder`.
    """
    if train.new_encoder is None:
        return encoder
    build = {
        "train.recurrent": _new_recurrent,
        "train.convolutional": _new_convolutional,
        "train.dan": _new_dan,
        "train.transformer": _new_transformer,
        "train.word_table": _new_words,
        "train.paragraph_vectors": _new_paragraphs,
    }[train.new_encoder]
    return encoder.model_copy(update={"path": str(build(train))})


def _new_words(train: TrainSettings) -> Path:
    """Build the folder of new word vectors, or find it in the cache."""

    def build(folder: Path) -> None:
        write_word_table_folder(train.word_table, _count_words(train), folder, seed=train.seed)

    version = _version(train, train.word_table.model_dump(mode="json"), WORDS_FORMAT, _training_files(train))
    return cached_folder("words", version, build)


def _new_paragraphs(train: TrainSettings) -> Path:
    """Build the folder of new paragraph vectors, or find it in the cache."""

    def build(folder: Path) -> None:
        write_paragraph_folder(
            train.paragraph_vectors, _count_words(train), folder, rows=_count_rows(train), seed=train.seed
        )

    version = _version(
        train, train.paragraph_vectors.model_dump(mode="json"), PARAGRAPHS_FORMAT, _training_files(train)
    )
    return cached_folder("paragraphs", version, build)


def _new_recurrent(train: TrainSettings) -> Path:
    """Build the folder of a new recurrent encoder, or find it in the cache."""
    settings = train.recurrent

    def build(folder: Path) -> None:
        new_recurrent.write_recurrent_folder(settings, _counts(train, settings), folder, seed=train.seed)

    return cached_folder("recurrent", _version_with_vocabulary(train, settings, new_recurrent.FORMAT), build)


def _new_convolutional(train: TrainSettings) -> Path:
    """Build the folder of a new convolutional encoder, or find it in the cache."""
    settings = train.convolutional

    def build(folder: Path) -> None:
        counts = _counts(train, settings)
        new_convolutional.write_convolutional_folder(settings, counts, folder, seed=train.seed)

    return cached_folder(
        "convolutional", _version_with_vocabulary(train, settings, new_convolutional.FORMAT), build
    )


def _new_dan(train: TrainSettings) -> Path:
    """Build the folder of a new deep averaging network, or find it in the cache."""
    settings = train.dan

    def build(folder: Path) -> None:
        new_dan.write_dan_folder(settings, _counts(train, settings), folder, seed=train.seed)

    return cached_folder("dan", _version_with_vocabulary(train, settings, new_dan.FORMAT), build)


def _new_transformer(train: TrainSettings) -> Path:
    """Build the folder of a new Transformer, or find it in the cache."""
    settings = train.transformer

    def build(folder: Path) -> None:
        new_transformer.write_transformer_folder(settings, _count_words(train), folder, seed=train.seed)

    version = _version(
        train, settings.model_dump(mode="json"), new_transformer.FORMAT, _training_files(train)
    )
    return cached_folder("transformer", version, build)


def _counts(train: TrainSettings, settings: VocabularySettings) -> Counter[str]:
    """Count the words of the training rows, unless the vocabulary is that of a file of word vectors."""
    return _count_words(train) if settings.words is None else Counter()


def _version_with_vocabulary(train: TrainSettings, settings: VocabularySettings, file_format: int) -> str:
    """Return the version of a new encoder whose words are those of the training rows or of a file."""
    if settings.words is None:
        vocabulary_source = _training_files(train)
    else:
        folder = word_vector_folder(settings)
        vocabulary_source = list[object](digest_of_file(folder / name) for name in _WORD_VECTOR_FILES)
    return _version(
        train, settings.model_dump(mode="json", exclude={"words"}), file_format, vocabulary_source
    )


def _version(
    train: TrainSettings, settings: dict[str, object], file_format: int, vocabulary_source: list[object]
) -> str:
    """Return a digest of everything that decides the new encoder."""
    return digest_of(
        {
            "format": file_format,
            "settings": settings,
            "seed": train.seed,
            "torch": torch.__version__,
            "of": vocabulary_source,
        }
    )


def _count_words(train: TrainSettings) -> Counter[str]:
    """Count the words of the training rows."""
    say("counting the words of the training rows; this is done once per machine")
    return count_words(_texts(train))


def _count_rows(train: TrainSettings) -> int:
    """Count the rows of all sources, also those that are not trained on: they have numbers too."""
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


def _open(train: TrainSettings, source: PairSettings) -> TrainingRows:
    """Open the rows of a source, with the roles that the objectives read."""
    required = data_requirements(train.of_source(source))
    return open_training_rows(source, required.columns, required.optional)
