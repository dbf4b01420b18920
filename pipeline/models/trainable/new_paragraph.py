"""Write folders of new paragraph vectors: a vocabulary of the training texts, and models that predict it.

A model predicts words of the vocabulary from the vector of their paragraph.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from pipeline.models.folder.paragraphs import FORMAT, NOISE, ROWS, SETTINGS
from pipeline.models.folder.word_vectors import MAX_LENGTH, PARAGRAPH
from pipeline.models.trainable.new_vocabulary import most_frequent, write_pooling
from pipeline.models.trainable.paragraph import ParagraphBackbone
from pipeline.models.trainable.saving import write_json
from pipeline.settings.weights import ParagraphSettings

_POWER = 0.75  # exponent of the words' probabilities by which negatives are drawn (Mikolov et al. 2013)


def write_paragraph_folder(
    settings: ParagraphSettings, counts: Counter[str], folder: Path, *, rows: int, seed: int
) -> None:
    """Write the encoder folder of new paragraph vectors.

    Args:
        settings: models, vocabulary and inference.
        counts: counts of lowercased words.
        folder: folder to write to.
        rows: number of training rows, each of which gets a vector of its own in the training.
        seed: seed of the weights.

    Raises:
        ModelError: `counts` is empty.
    """
    words = most_frequent(counts, settings.vocabulary)
    weights = np.array([counts[word] for word in words], np.float64) ** _POWER
    noise = (weights / weights.sum()).astype(np.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = ParagraphBackbone(str(folder), settings, noise)
        backbone.draw()
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}
    save_file({**tensors, NOISE: torch.from_numpy(noise)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "vocab.txt").write_bytes("\n".join(words).encode())
    config = {
        "model_type": PARAGRAPH,
        "hidden_size": backbone.width,
        "vocab_size": len(words),
        ROWS: rows,
        SETTINGS: settings.model_dump(mode="json"),
        "format": FORMAT,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": MAX_LENGTH, "do_lower_case": True})
    write_pooling(folder, backbone.width, "cls")
