"""Folders of small paragraph vectors for tests."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file

from pipeline.models.classic.paragraph import NOISE, write_paragraph_folder
from pipeline.settings.weights import ParagraphSettings

WORDS = ("the", "dog", "cat", "runs", "sleeps", "here", "now")
SMALL = {"dim": 5, "window": 2, "words": 3, "negatives": 2, "steps": 8, "learning_rate": 0.5}


def write_paragraphs(
    folder: Path,
    *,
    rows: int = 6,
    seed: int = 0,
    scale: float = 1.0,
    words_known: Sequence[str] = WORDS,
    **settings: object,
) -> Path:
    """Write new paragraph vectors of a few words, with their weights multiplied by `scale`."""
    counts = Counter({word: 10 + row for row, word in enumerate(words_known)})
    write_paragraph_folder(ParagraphSettings(**(SMALL | settings)), counts, folder, rows=rows, seed=seed)
    weights = load_file(folder / "model.safetensors")
    scaled = {name: value if name == NOISE else value * scale for name, value in weights.items()}
    save_file(scaled, folder / "model.safetensors", {"format": "pt"})
    return folder
