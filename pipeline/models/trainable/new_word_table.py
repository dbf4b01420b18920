"""Write folders of new word vectors: a vocabulary of the training texts, with random vectors and counts."""

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.folder.word_vectors import FORMAT, MAX_LENGTH, TABLE, WORDS
from pipeline.models.trainable.new_vocabulary import most_frequent, write_pooling
from pipeline.models.trainable.word_table import draw_vectors
from pipeline.settings.weights import WordTableSettings


def write_word_table_folder(
    settings: WordTableSettings, counts: Counter[str], folder: Path, *, seed: int
) -> None:
    """Write the encoder folder of new word vectors, whose sum is the vector of a text.

    The counts of its words are stored beside them (frequencies.parquet), for negative sampling and for
    `encoder.sif`.

    Args:
        settings: dimensions and size of the vocabulary.
        counts: counts of lowercased words.
        folder: folder to write to.
        seed: seed of the vectors.

    Raises:
        ModelError: `counts` is empty.
    """
    assert settings.dim is not None, "the caller asks for new word vectors"
    words = most_frequent(counts, settings.vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        table = draw_vectors(torch.empty(len(words), settings.dim))
    folder.mkdir(parents=True, exist_ok=True)
    save_file({TABLE: table}, folder / "model.safetensors", {"format": "pt"})
    (folder / "vocab.txt").write_bytes("\n".join(words).encode())
    pq.write_table(pa.table({"word": words, "count": [counts[word] for word in words]}), folder / FREQUENCIES)
    config = {"model_type": WORDS, "hidden_size": settings.dim, "vocab_size": len(words), "words": FORMAT}
    st_config = {"max_seq_length": MAX_LENGTH, "do_lower_case": True}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "sentence_bert_config.json").write_text(json.dumps(st_config, indent=1))
    write_pooling(folder, settings.dim, "sum")
