"""Folders of new recurrent encoders: new weights, and a vocabulary from texts or a file of word vectors."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.locate import locate
from pipeline.models.folder.modules import read_json
from pipeline.models.folder.word_vectors import FIRST, LAST, RECURRENT, TABLE, UNKNOWN, WORDS, words_of
from pipeline.models.layers.recurrence import CELLS
from pipeline.models.trainable.recurrent import Recurrent, RecurrentBackbone
from pipeline.models.trainable.saving import write_json
from pipeline.settings.weights import RecurrentSettings

FORMAT = 1  # changes with the rules below
_MAX_LENGTH = 256  # words of one text by default: a recurrent encoder takes as many steps
_CONTEXTS = 4  # weighted sums, as published
_MOST_COUNTED = 4_000_000  # words held while counting, about 400 MB
_STEM = "sentence_transformers.models."


def count_words(texts: Iterable[str], most: int = _MOST_COUNTED) -> Counter[str]:
    """Count the words of the texts, lower-cased.

    To bound memory, the rarest words are dropped whenever there are more than `most` different ones.
    """
    counts: Counter[str] = Counter()
    least = 1
    for text in texts:
        counts.update(words_of(text))
        while len(counts) > most:
            counts = Counter({word: count for word, count in counts.items() if count > least})
            least += 1
    return counts


def write_scratch(settings: RecurrentSettings, counts: Counter[str], folder: Path, *, seed: int) -> None:
    """Write the encoder folder.

    Args:
        settings: shape, and the file of word vectors, if any.
        counts: of the words to learn vectors for; not used with a file of word vectors.
        folder: to write to.
        seed: of the weights.

    Raises:
        ConfigError: no cell is named, or there is no file of word vectors.
        ModelError: the file of word vectors cannot be read, or `counts` is empty.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vocabulary, table, lower = (
            _known(settings.words, settings.vocabulary)
            if settings.words
            else (_learned(settings, counts), None, True)
        )
        shape = _shape(settings, len(vocabulary), settings.word_dim if table is None else table.shape[1])
        with torch.device("meta"):
            backbone = RecurrentBackbone(shape, str(folder))
        backbone.to_empty(device="cpu").draw()
    weights = dict(backbone.state_dict()) | ({} if table is None else {TABLE: table})
    weights = {name: tensor.contiguous() for name, tensor in weights.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "vocab.txt").write_bytes("\n".join(vocabulary).encode())
    write_json(folder / "config.json", _config(shape))
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": _MAX_LENGTH, "do_lower_case": lower})
    readouts = {"last": "lasttoken" if settings.directions == 1 else "ends", "attention": "mean"}
    write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": shape.last,
            # a list, so that sentence-transformers refuses "ends", which is a name of this project
            "pooling_mode": [readouts.get(settings.readout, settings.readout)],
            "include_prompt": True,
        },
    )
    write_json(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": _STEM + kind}
            for number, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
        ],
    )


def _config(shape: Recurrent) -> dict[str, object]:
    return {
        "model_type": RECURRENT,
        "cell": shape.cell,
        "hidden_size": shape.last,
        "directions": shape.directions,
        "num_hidden_layers": shape.layers,
        "contexts": shape.contexts,
        "vocab_size": shape.vocabulary,
        "embedding_size": shape.word_dim,
        "learned_words": shape.learned,
        "dropout": shape.dropout,
        "format": FORMAT,
    }


def folder_of_words(file: str) -> Path:
    """Return the folder in this machine's cache for a file of word vectors, given by path or URI.

    Raises:
        ConfigError: there is no such file.
        ModelError: as in `read_vectors`.
    """
    if "://" not in file and not Path(file).expanduser().exists():
        raise ConfigError(
            "train.recurrent.words",
            "a file of word vectors",
            f"no file {file}",
            "set it to one, such as a GloVe text file, or to null to learn vectors",
        )
    folder = locate(file)
    if (found := read_json(folder / "config.json", required=True).get("model_type")) != WORDS:
        raise ConfigError(
            "train.recurrent.words",
            "a file of word vectors",
            f"the {found} encoder {file}",
            "set it to a file, or to null to learn vectors",
        )
    return folder


def _learned(settings: RecurrentSettings, counts: Counter[str]) -> list[str]:
    """Return the vocabulary: the unknown word, the marks, then the most frequent words, equal ones by their
    letters.
    """
    if not counts:
        raise ModelError(
            "train.data",
            "words to learn vectors for",
            "texts without any",
            "check the files, or set train.recurrent.words to word vectors",
        )
    known = sorted(counts, key=lambda word: (-counts[word], word))
    return [UNKNOWN, FIRST, LAST, *known[: None if settings.vocabulary is None else settings.vocabulary - 1]]


def _known(file: str, most: int | None) -> tuple[list[str], Tensor, bool]:
    """Read the first `most` words of a file of word vectors; None for all.

    Returns:
        The marks and the words, their vectors, and whether texts are lower-cased. A mark that is not in the
        file gets a new vector, with the standard deviation of the others.
    """
    folder = folder_of_words(file)
    words = (folder / "vocab.txt").read_bytes().decode().split("\n")
    table = load_file(folder / "model.safetensors")[TABLE]
    rows = {word: row for row, word in enumerate(words)}
    marks = [
        table[rows[mark]] if mark in rows else torch.randn(table.shape[1]) * table.std()
        for mark in (FIRST, LAST)
    ]
    chosen = [row for row, word in enumerate(words[:most]) if word not in (UNKNOWN, FIRST, LAST)]
    lower = bool(read_json(folder / "sentence_bert_config.json")["do_lower_case"])
    vectors = torch.cat([torch.stack(marks), table[chosen]])
    return [FIRST, LAST, *(words[row] for row in chosen)], vectors, lower


def _shape(settings: RecurrentSettings, vocabulary: int, word_dim: int) -> Recurrent:
    if settings.cell is None:
        raise ConfigError("train.recurrent.cell", f"one of {', '.join(CELLS)}", "null", "set it to one")
    return Recurrent(
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
