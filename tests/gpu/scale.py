"""Sizes, texts and models of the parts, and the tables that they return."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.benchmarks.families import train_tokenizer, write_folder

NOT_THERE = f"not in transformers {transformers.__version__}"
_SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "zo", "chi")
_WORDS = 4_000
transformers.utils.logging.disable_progress_bar()  # its lines would stand between those of tables
_TRAINING_TEXTS = 2_000


@dataclass(frozen=True)
class Scale:
    """Device and sizes of a run."""

    device: str
    """cpu or cuda"""
    small: bool
    """sizes of a run of seconds on a CPU, instead of those that fill a GPU"""
    folder: Path
    """folder for files"""
    part: str = ""
    """name of the part, for its lines on standard error"""

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def report(self, row: Sequence[str]) -> None:
        """Print a row to standard error, so that it is known even if the part is stopped."""
        print(" | ".join([self.part, *row]), file=sys.stderr, flush=True)

    def choose(self, small: int, large: int) -> int:
        """Return the first number if sizes are small, else the second."""
        return small if self.small else large


@dataclass(frozen=True)
class PartTable:
    """Results of a part."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    problems: list[str] = field(default_factory=list)
    """sentences about results that are not as they must be"""


Part = Callable[[Scale], PartTable]


def vocabulary() -> np.ndarray:
    """Return made-up words of two to four syllables."""
    rng = np.random.default_rng(0)
    return np.array(sorted({"".join(rng.choice(_SYLLABLES, rng.integers(2, 5))) for _ in range(_WORDS)}))


def texts_of(count: int, fewest: int, most: int, seed: int = 0) -> list[str]:
    """Return distinct texts with a number of words that is drawn from a range."""
    rng, words = np.random.default_rng(seed), vocabulary()
    lengths = rng.integers(fewest, most, count, endpoint=True)
    drawn = np.split(words[rng.integers(len(words), size=lengths.sum())], np.cumsum(lengths)[:-1])
    return [" ".join([*text[1:], str(number)]) for number, text in enumerate(drawn)]


def bert(scale: Scale) -> Path:
    """Write a random BERT: of the size of BERT-base or, if sizes are small, of three layers."""
    folder = scale.folder / "bert"
    if folder.exists():
        return folder
    sizes = {"num_hidden_layers": 3, "hidden_size": 96, "num_attention_heads": 3, "intermediate_size": 192}
    config = transformers.BertConfig(**(sizes if scale.small else {}))
    tokenizer = train_tokenizer(texts_of(_TRAINING_TEXTS, 4, 40))
    return write_folder(lambda: transformers.BertModel(config), tokenizer, folder)


def has_family(model_type: str) -> bool:
    """Return whether this version of transformers has a family of models."""
    return model_type in CONFIG_MAPPING


def wait(scale: Scale) -> None:
    """Wait until the GPU has done everything that was started."""
    if scale.on_gpu:
        torch.cuda.synchronize()


def peak_gib(scale: Scale) -> str:
    """Return the largest memory of torch on the GPU since the last call, in GiB; "" on a CPU."""
    if not scale.on_gpu:
        return ""
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return f"{peak / 2**30:.1f}"
