"""Write folders of new recurrent encoders: new weights, and a vocabulary from texts or word vectors."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.locate import locate
from pipeline.models.folder.modules import read_json
from pipeline.models.folder.word_vectors import (
    FIRST,
    LAST,
    RECURRENT,
    TABLE,
    UNKNOWN,
    WORDS,
    read_words,
    words_of,
)
from pipeline.models.layers.recurrence import CELLS
from pipeline.models.trainable.recurrent import RecurrentBackbone, RecurrentShape
from pipeline.models.trainable.saving import write_json
from pipeline.settings.weights import RecurrentSettings

FORMAT = 1  # to be raised when this module writes folders differently
_MAX_LENGTH = 256  # words of a text by default; each is one step of a recurrent encoder
_CONTEXTS = 4  # weighted sums of the attention pooling, as in Conneau et al. 2017
_MAX_COUNTED = 4_000_000  # different words in memory while counting, about 400 MB
_ST_MODULES = "sentence_transformers.models."


def count_words(texts: Iterable[str], most: int = _MAX_COUNTED) -> Counter[str]:
    """Count the lowercased words of the texts.

    To bound memory, the rarest words are dropped whenever there are more than `most` different ones.
    """
    counts: Counter[str] = Counter()
    rarest = 1  # the count of the words to drop next
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
        if settings.words:
            words = _read_vocabulary(settings.words, settings.vocabulary)
        else:
            words = _Vocabulary(_choose_words(settings, counts), table=None, lower=True)
        word_dim = settings.word_dim if words.table is None else words.table.shape[1]
        shape = _shape(settings, len(words.tokens), word_dim)
        with torch.device("meta"):
            backbone = RecurrentBackbone(shape, str(folder))
        backbone.to_empty(device="cpu").draw()
    weights = {name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}
    if words.table is not None:
        weights[TABLE] = words.table.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "vocab.txt").write_bytes("\n".join(words.tokens).encode())
    write_json(folder / "config.json", _config(shape))
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": _MAX_LENGTH, "do_lower_case": words.lower},
    )
    poolings = {"last": "lasttoken" if settings.directions == 1 else "ends", "attention": "mean"}
    write_pooling(folder, shape.output_width, poolings.get(settings.readout, settings.readout))


def write_pooling(folder: Path, width: int, pooling: str) -> None:
    """Write modules.json of an encoder with a pooling and no module after it.

    Args:
        folder: the encoder's folder.
        width: values of a hidden state.
        pooling: name in sentence-transformers, or this project's name if that library has no such pooling.
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
    write_json(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": _ST_MODULES + kind}
            for number, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
        ],
    )


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


def word_vector_folder(file: str) -> Path:
    """Convert a file of word vectors, given by path or URI, into an encoder folder in this machine's cache.

    Raises:
        ConfigError: there is no such file.
        ModelError: the file is invalid; see `read_vectors`.
    """
    if "://" not in file and not Path(file).expanduser().exists():
        raise ConfigError(
            "train.recurrent.words",
            "a file of word vectors",
            f"no file {file}",
            "set it to one, such as a GloVe text file, or to null to learn vectors",
        )
    folder = locate(file)
    model_type = read_json(folder / "config.json", required=True).get("model_type")
    if model_type != WORDS:
        raise ConfigError(
            "train.recurrent.words",
            "a file of word vectors",
            f"the {model_type} encoder {file}",
            "set it to a file, or to null to learn vectors",
        )
    return folder


class _Vocabulary(NamedTuple):
    """Tokens of an encoder, start and end token included, and how texts are read."""

    tokens: list[str]
    table: Tensor | None
    """(tokens, d) fixed word vectors; None if they are learned"""
    lower: bool
    """texts are lowercased"""


def _choose_words(settings: RecurrentSettings, counts: Counter[str]) -> list[str]:
    """List the tokens for unknown words, start and end, then the most frequent words."""
    limit = None if settings.vocabulary is None else settings.vocabulary - 1  # without UNKNOWN
    return [UNKNOWN, FIRST, LAST, *most_frequent(counts, limit)]


def _read_vocabulary(file: str, limit: int | None) -> _Vocabulary:
    """Read the first `limit` words of a file of word vectors; None for all.

    If the file has no start or end token, that token gets a random vector with the standard deviation of the
    others.
    """
    folder = word_vector_folder(file)
    words = read_words(folder)
    table = load_file(folder / "model.safetensors")[TABLE]
    rows = {word: row for row, word in enumerate(words)}
    ends = [
        table[rows[token]] if token in rows else torch.randn(table.shape[1]) * table.std()
        for token in (FIRST, LAST)
    ]
    chosen = [row for row, word in enumerate(words[:limit]) if word not in (UNKNOWN, FIRST, LAST)]
    lower = bool(read_json(folder / "sentence_bert_config.json")["do_lower_case"])
    vectors = torch.cat([torch.stack(ends), table[chosen]])
    return _Vocabulary([FIRST, LAST, *(words[row] for row in chosen)], vectors, lower)


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
