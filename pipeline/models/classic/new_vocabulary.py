"""Vocabularies of new encoders, from texts or from a file of word vectors, and the files of their folders."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.errors import ConfigError, ModelError
from pipeline.models.classic.base import WordBackbone
from pipeline.models.folder.locate import locate
from pipeline.models.folder.modules import read_json, write_json
from pipeline.models.folder.word_vectors import (
    END,
    START,
    TABLE,
    UNKNOWN,
    WORDS,
    read_words,
    words_of,
)
from pipeline.models.layers.post_pooling import DenseModule, saved_module
from pipeline.settings.weights import VocabularySettings

MAX_LENGTH = 256  # words of a text by default; each is one step of a recurrent encoder
_MAX_COUNTED = 4_000_000  # different words in memory while counting, about 400 MB
_ST_MODULES = "sentence_transformers.models."


class NewVocabulary(NamedTuple):
    """Tokens of an encoder, start and end token included, and how texts are read."""

    tokens: list[str]
    table: Tensor | None
    """(tokens, d) fixed word vectors; None if they are learned"""
    lower: bool
    """texts are lowercased"""

    def dim(self, settings: VocabularySettings) -> int:
        """Return the dimension of the fixed word vectors, or `settings.word_dim` if there are none."""
        return settings.word_dim if self.table is None else self.table.shape[1]


def count_words(texts: Iterable[str], most: int = _MAX_COUNTED) -> Counter[str]:
    """Count the lowercased words of the texts.

    To bound memory, the rarest words are dropped whenever there are more than `most` different ones.
    """
    counts: Counter[str] = Counter()
    rarest = 1  # words with this count are dropped next
    for text in texts:
        counts.update(words_of(text))
        while len(counts) > most:
            counts = Counter({word: count for word, count in counts.items() if count > rarest})
            rarest += 1
    return counts


def most_frequent(counts: Counter[str], limit: int | None) -> list[str]:
    """List at most `limit` words, the most frequent first, ties by spelling.

    Raises:
        ModelError: there are no words.
    """
    if not counts:
        raise ModelError(
            "train.data",
            "words to learn vectors for",
            "texts without any",
            "check the files, or start from word vectors of your own",
        )
    return sorted(counts, key=lambda word: (-counts[word], word))[:limit]


def new_vocabulary(settings: VocabularySettings, counts: Counter[str]) -> NewVocabulary:
    """Return the vocabulary of a new encoder that reads words in their order.

    Args:
        settings: size of the vocabulary, and the file of word vectors, if any.
        counts: counts of the words to learn vectors for; not used with a file of word vectors.

    Raises:
        ConfigError: `settings.words` names no file of word vectors.
        ModelError: the file of word vectors cannot be read, or `counts` is empty.
    """
    if settings.words:
        return _read_vocabulary(settings)
    return NewVocabulary(_choose_words(settings, counts), table=None, lower=True)


def write_new_encoder(
    backbone: WordBackbone, vocabulary: NewVocabulary, file_format: int, folder: Path
) -> None:
    """Write the folder of a new encoder, except for its pooling; see `write_pooling`.

    Args:
        backbone: the new weights.
        vocabulary: its words; fixed word vectors replace those of the backbone.
        file_format: version of the folders of this family.
        folder: folder to write to.
    """
    weights = {name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}
    if vocabulary.table is not None:
        weights[TABLE] = vocabulary.table.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "vocab.txt").write_bytes("\n".join(vocabulary.tokens).encode())
    shape = asdict(backbone.shape)  # type: ignore[call-overload]
    config = {"model_type": backbone.model_type, **shape, "format": file_format}
    write_json(folder / "config.json", config)
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": MAX_LENGTH, "do_lower_case": vocabulary.lower},
    )


def write_pooling(folder: Path, width: int, pooling: str, layers: Sequence[DenseModule] = ()) -> None:
    """Write modules.json of an encoder, its pooling and the dense layers after it.

    Args:
        folder: the encoder's folder.
        width: values of a hidden state.
        pooling: name in sentence-transformers, or this project's name if that library has no such pooling.
        layers: dense layers in order.
    """
    write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": width,
            # a list, so that sentence-transformers refuses a pooling that it does not have
            "pooling_mode": [pooling],
            "include_prompt": True,
        },
    )
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    for number, layer in enumerate(layers, start=len(modules)):
        saved = saved_module(layer)
        modules.append((f"{number}_{saved.kind}", saved.kind))
        write_json(folder / modules[-1][0] / "config.json", saved.config)
        save_file(dict(saved.tensors), folder / modules[-1][0] / "model.safetensors", {"format": "pt"})
    write_json(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": _ST_MODULES + kind}
            for number, (path, kind) in enumerate(modules)
        ],
    )


def word_vector_folder(settings: VocabularySettings) -> Path:
    """Convert the file of word vectors, given by path or URI, into an encoder folder in this machine's cache.

    Raises:
        ConfigError: there is no such file, or it is an encoder of another kind.
        ModelError: the file is invalid; see `read_vectors`.
    """
    file, setting = str(settings.words), f"train.{settings.kind}.words"
    if "://" not in file and not Path(os.path.expanduser(file)).exists():
        raise ConfigError(
            setting,
            "a file of word vectors",
            f"no file {file}",
            "set it to one, such as a GloVe text file, or to null to learn vectors",
        )
    folder = locate(file)
    model_type = read_json(folder / "config.json", required=True).get("model_type")
    if model_type != WORDS:
        raise ConfigError(
            setting,
            "a file of word vectors",
            f"the {model_type} encoder {file}",
            "set it to a file, or to null to learn vectors",
        )
    return folder


def _choose_words(settings: VocabularySettings, counts: Counter[str]) -> list[str]:
    """List the tokens for unknown words, start and end, then the most frequent words."""
    limit = None if settings.vocabulary is None else settings.vocabulary - 1  # without UNKNOWN
    return [UNKNOWN, START, END, *most_frequent(counts, limit)]


def _read_vocabulary(settings: VocabularySettings) -> NewVocabulary:
    """Read the first words of the file of word vectors, at most `vocabulary`.

    If the file lacks the start or the end token, that token gets a random vector with the standard deviation
    of the file's vectors.
    """
    folder = word_vector_folder(settings)
    words = read_words(folder)
    table = load_file(folder / "model.safetensors")[TABLE]
    rows = {word: row for row, word in enumerate(words)}
    ends = [
        table[rows[token]] if token in rows else torch.randn(table.shape[1]) * table.std()
        for token in (START, END)
    ]
    chosen = [
        row for row, word in enumerate(words[: settings.vocabulary]) if word not in (UNKNOWN, START, END)
    ]
    lower = bool(read_json(folder / "sentence_bert_config.json")["do_lower_case"])
    vectors = torch.cat([torch.stack(ends), table[chosen]])
    return NewVocabulary([START, END, *(words[row] for row in chosen)], vectors, lower)
