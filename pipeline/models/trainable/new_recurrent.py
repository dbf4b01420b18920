"""A new recurrent encoder as a folder: its vocabulary, counted from texts or taken from a file of word
vectors, and weights that nothing has trained yet.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.locate import locate
from pipeline.models.folder.modules import read_json
from pipeline.models.folder.word_vectors import FIRST, LAST, RECURRENT, TABLE, UNKNOWN, WORDS, words_of
from pipeline.models.layers.recurrence import CELLS
from pipeline.models.trainable.recurrent import Recurrent, RecurrentBackbone
from pipeline.settings.weights import RecurrentSettings

FORMAT = 1  # changes with the rules below
_MAX_LENGTH = 256  # words of one text where nobody says otherwise: a recurrent encoder takes as many steps
_CONTEXTS = 4  # weighted sums, as published
_MOST_COUNTED = 4_000_000  # words held while counting, about 400 MB
_STEM = "sentence_transformers.models."


def count_words(texts: Iterable[str], most: int = _MOST_COUNTED) -> Counter[str]:
    """How often each word of the texts occurs, lower-cased.

    Of more than `most` words the rarest are forgotten, ever less rare ones: so memory is bounded.
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
    """Write the encoder folder, weights drawn by the seed. counts: of the words to learn vectors for; not
    used where `settings.words` names vectors.

    ConfigError for a cell that is not named, and for word vectors that are not there; ModelError where their
    file cannot be read.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vocabulary, table, lower = (
            _known(settings) if settings.words else (_learned(settings, counts), None, True)
        )
        shape = _shape(settings, len(vocabulary), settings.word_dim if table is None else table.shape[1])
        backbone = _drawn(shape, str(folder))
    weights = dict(backbone.state_dict()) | ({} if table is None else {TABLE: table})
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    (folder / "vocab.txt").write_bytes("\n".join(vocabulary).encode())
    _write(folder / "config.json", _config(shape))
    _write(folder / "sentence_bert_config.json", {"max_seq_length": _MAX_LENGTH, "do_lower_case": lower})
    _write(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": shape.last, "pooling_mode": _pooling(settings), "include_prompt": True},
    )
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    _write(
        folder / "modules.json",
        [
            {"idx": place, "name": str(place), "path": path, "type": _STEM + kind}
            for place, (path, kind) in enumerate(modules)
        ],
    )


def folder_of_words(file: str) -> Path:
    """The folder that this machine's cache has for a file of word vectors, at a path or a URI. ConfigError
    where there is none; ModelError as of `read_vectors`.
    """
    if "://" not in file and not Path(file).expanduser().exists():
        raise ConfigError(
            "train.recurrent.words",
            "a file of word vectors",
            f"no file {file}",
            "name one, such as a GloVe text file, or null to learn vectors",
        )
    folder = locate(file)
    if (found := read_json(folder / "config.json", required=True).get("model_type")) != WORDS:
        raise ConfigError(
            "train.recurrent.words",
            "a file of word vectors",
            f"the {found} encoder {file}",
            "name such a file",
        )
    return folder


def _learned(settings: RecurrentSettings, counts: Counter[str]) -> list[str]:
    """The commonest words, equally common ones by their letters; first what stands for all others, and the
    marks.
    """
    if not counts:
        raise ModelError(
            "train.data",
            "words to learn vectors for",
            "texts without any",
            "check the files, or name word vectors in train.recurrent.words",
        )
    known = sorted(counts, key=lambda word: (-counts[word], word))
    return [UNKNOWN, FIRST, LAST, *known[: None if settings.vocabulary is None else settings.vocabulary - 1]]


def _known(settings: RecurrentSettings) -> tuple[list[str], Tensor, bool]:
    """(the marks and the first words of the file, their vectors, whether texts are lower-cased).

    A mark that the file lacks gets a new vector, as long as others.
    """
    from safetensors.torch import load_file

    folder = folder_of_words(str(settings.words))
    words, table = (
        (folder / "vocab.txt").read_bytes().decode().split("\n"),
        load_file(folder / "model.safetensors")[TABLE],
    )
    places = {word: place for place, word in enumerate(words)}
    marks = [
        table[places[mark]] if mark in places else torch.randn(table.shape[1]) * table.std()
        for mark in (FIRST, LAST)
    ]
    chosen = [
        place for place, word in enumerate(words[: settings.vocabulary]) if word not in (UNKNOWN, FIRST, LAST)
    ]
    lower = bool(json.loads((folder / "sentence_bert_config.json").read_text())["do_lower_case"])
    return (
        [FIRST, LAST, *(words[place] for place in chosen)],
        torch.cat([torch.stack(marks), table[chosen]]),
        lower,
    )


def _shape(settings: RecurrentSettings, vocabulary: int, word_dim: int) -> Recurrent:
    if settings.cell is None:
        raise ConfigError("train.recurrent.cell", f"one of {', '.join(CELLS)}", "null", "name one")
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


def _drawn(shape: Recurrent, where: str) -> RecurrentBackbone:
    with torch.device("meta"):
        backbone = RecurrentBackbone(shape, where)
    backbone.to_empty(device="cpu").draw()
    return backbone


def _config(shape: Recurrent) -> dict[str, Any]:
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


def _pooling(settings: RecurrentSettings) -> list[str]:
    """The readout under the name of the pooling that it is, as a list: a name of ours alone would be no mode
    of that library.
    """
    names = {
        "last": "lasttoken" if settings.directions == 1 else "ends",
        "max": "max",
        "mean": "mean",
        "attention": "mean",
    }
    return [names[settings.readout]]


def _write(file: Path, value: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
