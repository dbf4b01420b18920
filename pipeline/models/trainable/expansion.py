"""Vocabulary expansion (Kiros et al. 2015, section 2.2): words that were not trained get mapped vectors."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pipeline.errors import ConfigError
from pipeline.log import announce, counted
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.modules import write_json
from pipeline.models.folder.word_vectors import END, START, TABLE, UNKNOWN, read_words
from pipeline.settings import EncoderSettings

_SETTING = "train.expand.words"
# A deep averaging network has vectors of bigrams, too, and the map gives none for bigrams of new words.
_FAMILIES = ("recurrent", "convolutional")


class WordMatches(NamedTuple):
    """Words of a file of word vectors, compared with an encoder's words."""

    own_rows: np.ndarray
    """(shared,) rows of the shared words in the encoder's table"""
    file_rows: np.ndarray
    """(shared,) rows of the same words in the file"""
    new_rows: np.ndarray
    """(new,) rows in the file of words that the encoder lacks and can read"""


def check_expansion(encoder: EncoderFolder, vectors: EncoderFolder, limit: int | None) -> None:
    """Check, before a training, that the encoder's vocabulary can be expanded.

    Args:
        encoder: the encoder that training starts from.
        vectors: the file of word vectors, opened as an encoder.
        limit: number of words to read from the beginning of the file; None for all.

    Raises:
        ConfigError: the encoder has no table of learned words, `vectors` are not word vectors, or they share
            no word.
    """
    if encoder.family not in _FAMILIES or not encoder.config.get("learned_words"):
        raise ConfigError(
            _SETTING,
            "a recurrent or convolutional encoder with learned word vectors",
            str(encoder.config.get("model_type")),
            "set it to null; with given word vectors raise train.recurrent.vocabulary instead",
        )
    if vectors.family != "words":
        raise ConfigError(
            _SETTING,
            "a file of word vectors",
            f"the {vectors.config.get('model_type')} encoder {vectors.path}",
            "set it to a file in the format of word2vec or GloVe, or to null",
        )
    if not len(_match(encoder, vectors, limit).own_rows):
        raise ConfigError(
            _SETTING,
            "words of the encoder's vocabulary, on which the map is fitted",
            "none of them",
            "set it to word vectors of the same language, or to null",
        )


def expand_vocabulary(folder: EncoderFolder, vectors: EncoderFolder, limit: int | None) -> EncoderFolder:
    """Append words of a file of word vectors to the vocabulary of a saved encoder, and open it again.

    A linear map W is fitted on the words that both have. Each other word of the file is appended with the
    vector W v, where v is its vector in the file. Words with capitals are left out if the encoder lowercases
    texts. Encoders whose vectors are concatenated are expanded one by one.

    Args:
        folder: the encoder's folder, whose files are replaced.
        vectors: the file of word vectors, opened as an encoder.
        limit: number of words to read from the beginning of the file; None for all.
    """
    for part in folder.parts or (folder,):
        _expand(part, vectors, limit)
    return open_folder(EncoderSettings(path=str(folder.path)))


def fit_word_map(vectors: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Fit the linear map from word vectors to an encoder's vectors: argmin sum |W v - t|^2, in float64.

    Args:
        vectors: (n, a) vectors v of the shared words.
        targets: (n, b) the encoder's vectors t of these words.

    Returns:
        (a, b) the transpose W', so that v @ W' is a word's new vector; if n < a, the smallest such matrix.
    """
    solution: np.ndarray = np.linalg.lstsq(vectors.astype(np.float64), targets.astype(np.float64))[0]
    return solution


def _match(encoder: EncoderFolder, vectors: EncoderFolder, limit: int | None) -> WordMatches:
    own = {word: row for row, word in enumerate(read_words(encoder.transformer_path))}
    specials = {UNKNOWN, START, END}
    words = read_words(vectors.transformer_path)[:limit]
    shared = [row for row, word in enumerate(words) if word in own and word not in specials]
    new = [row for row, word in enumerate(words) if word not in own and word not in specials]
    if encoder.lower:
        new = [row for row in new if words[row] == words[row].lower()]
    own_rows = [own[words[row]] for row in shared]
    return WordMatches(*(np.array(rows, np.int64) for rows in (own_rows, shared, new)))


def _expand(encoder: EncoderFolder, vectors: EncoderFolder, limit: int | None) -> None:
    """Rewrite weights, words and config.json of an encoder."""
    matches = _match(encoder, vectors, limit)
    weights_file = encoder.file(encoder.weights[0])
    weights = load_file(weights_file)
    with safe_open(vectors.file(vectors.weights[0]), "pt") as file:
        source = file.get_slice(TABLE)[:limit].numpy()
    shared, targets = source[matches.file_rows], weights[TABLE].numpy()[matches.own_rows]
    word_map = fit_word_map(shared, targets)
    explained = 1 - np.square(shared @ word_map - targets).sum() / np.square(targets).sum()
    # float32, because a million words of 620 dimensions in float64 are 5 GB
    mapped = torch.from_numpy(source[matches.new_rows] @ word_map.astype(np.float32))
    weights[TABLE] = torch.cat([weights[TABLE], mapped])
    # a new file with the old one's permissions, because the old one may still be mapped into memory
    new_file = weights_file.with_suffix(".new")
    save_file(weights, new_file, {"format": "pt"})
    new_file.chmod(weights_file.stat().st_mode)
    new_file.replace(weights_file)
    _append_words(encoder.transformer_path, vectors.transformer_path, matches.new_rows)
    announce(
        f"appended to the vocabulary: {counted(len(mapped), 'word')}; the map of their vectors, fitted on "
        f"{counted(len(shared), 'shared word')}, explains {explained:.0%} of these words' squared lengths"
    )


def _append_words(encoder: Path, vectors: Path, rows: Sequence[int] | np.ndarray) -> None:
    """Append words of another folder to vocab.txt, and correct their number in config.json."""
    file_words = read_words(vectors)
    words = [*read_words(encoder), *(file_words[row] for row in rows)]
    (encoder / "vocab.txt").write_bytes("\n".join(words).encode())
    config = json.loads((encoder / "config.json").read_text())
    write_json(encoder / "config.json", config | {"vocab_size": len(words)})
