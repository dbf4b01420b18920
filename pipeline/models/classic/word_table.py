"""Vectors of words or tokens, from which a text's vector is pooled, without layers in between.

They are stored in the format of this project, of sentence-transformers or of model2vec. In inference they may
be multiplied by SIF weights (Arora et al. 2017).
"""

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.classic.base import refuse_changes
from pipeline.models.classic.new_vocabulary import most_frequent, write_pooling
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.frequencies import FREQUENCIES, Frequencies, read_frequencies
from pipeline.models.folder.static_embedding import TABLES
from pipeline.models.folder.word_vectors import FORMAT, MAX_LENGTH, TABLE, WORDS
from pipeline.models.layers.backbones import Backbone, ForwardRequest, Model
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import TABLE_STATE, Segments, find_segments
from pipeline.settings.weights import WordTableSettings
from pipeline.text.tokens.tokens import Tokenizer, Tokens


class TokenTable(NamedTuple):
    """Vectors of tokens: row `mapping[i]` times `weights[i]` for token i."""

    rows: Tensor
    """(n, d) float32"""
    mapping: Tensor | None = None
    """(vocabulary,) int64; None: i itself"""
    weights: Tensor | None = None
    """(vocabulary,) float32; None: 1"""

    def vectors(self, ids: Tensor) -> Tensor:
        """Look up the vectors (tokens, d) of token ids (tokens,)."""
        x = F.embedding(ids if self.mapping is None else self.mapping[ids], self.rows)
        return x if self.weights is None else x * self.weights[ids][:, None]

    def to(self, device: torch.device) -> "TokenTable":
        """Copy the tensors to a device."""
        return TokenTable(*(None if each is None else each.to(device) for each in self))  # type: ignore[arg-type]


class TokenVectors:
    """Vectors (tokens, d) of the tokens of a buffer, looked up only when they are indexed."""

    def __init__(self, table: TokenTable, ids: Tensor) -> None:
        self._table, self._ids = table, ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, indices: Tensor) -> Tensor:
        return self._table.vectors(self._ids[indices])


def load_table(folder: EncoderFolder, checkpoint: Checkpoint, tokenizer: Tokenizer) -> TokenTable:
    """Load the table of a folder of word vectors or of static embeddings.

    Raises:
        ModelError: tensors do not match each other, config.json or the tokenizer.
    """
    tokens, width = int(folder.config["vocab_size"]), int(folder.config["hidden_size"])
    if folder.family == "words":
        return TokenTable(checkpoint.tensor(TABLE, (tokens, width)))
    rows = checkpoint.tensor(next(name for name in TABLES if name in checkpoint), integers=True)
    mapping = checkpoint.raw("mapping").long() if "mapping" in checkpoint else None
    weights = checkpoint.tensor("weights") if "weights" in checkpoint else None
    last_token = max(tokenizer.vocabulary().values(), default=-1)
    last_row = last_token if mapping is None else int(mapping.max())
    if last_token >= tokens or last_row >= len(rows) or (mapping is not None and int(mapping.min()) < 0):
        raise ModelError(
            str(folder.path),
            f"a row of the table for each of the {last_token + 1:,} tokens of tokenizer.json",
            f"{tokens:,} tokens and {len(rows):,} rows",
            "check that weights and tokenizer belong together",
        )
    return TokenTable(rows, mapping, weights)


class WordTable(Backbone):
    """Table of vectors of words or tokens (vocabulary, d). All hidden states are these vectors."""

    def __init__(self, path: str, table: Tensor, dropout: float) -> None:
        super().__init__()
        self._path, self._dropout = path, dropout
        self.width, self.depth = table.shape[1], 0
        self.embeddings = nn.ModuleDict(
            {"word_embeddings": nn.Embedding.from_pretrained(table, freeze=False)}
        )

    @classmethod
    def load(cls, folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None) -> Self:
        """Load the table of a folder of word vectors or of static embeddings.

        Args:
            folder: the encoder's folder.
            weights: its weights.
            dropout: rate of dropout of the word vectors; None: no dropout.

        Raises:
            ModelError: the weights do not match the configuration, or `encoder.sif` is set, although a
                training does not weight words.
        """
        if folder.averaging.sif is not None:
            raise ModelError(
                "encoder.sif",
                "null, because a training gives all words equal weights",
                f"{folder.averaging.sif:g}",
                "set it to null, and set it again to encode with the trained word vectors",
            )
        table = load_table(folder, weights, folder.tokenizer())
        vectors = table.vectors(torch.arange(int(folder.config["vocab_size"])))
        return cls(str(folder.path), vectors.clone(), dropout or 0.0)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return the word vectors (tokens, d) as every wanted state, and the rows of each text in them.

        Raises:
            ModelError: the request has positions or changes the embeddings.
        """
        refuse_changes(request, self._path, "word vectors")
        tokens = request.tokens
        starts, lengths = tokens.offsets[:-1], tokens.lengths
        words = F.embedding(self._put(tokens.ids), self.word_table)
        x = F.dropout(words, self._dropout, self.training)
        segments = find_segments(starts, lengths, request.skip, self._put, tokens.kept)
        states = {number: words if number == TABLE_STATE else x for number in request.wanted}
        return states, segments

    @property
    def has_dropout(self) -> bool:
        """True if two passes over one text differ in train()."""
        return self._dropout > 0

    @property
    def word_table(self) -> Tensor:
        """Word vectors (vocabulary, d)."""
        return self.embeddings.get_parameter("word_embeddings.weight")

    def draw(self) -> None:
        """Draw new word vectors from torch's generator."""
        with torch.no_grad():
            draw_vectors(self.word_table)


def draw_vectors(table: Tensor) -> Tensor:
    """Fill a table (vocabulary, d) as word2vec does, uniformly from -0.5 / d to 0.5 / d, and return it."""
    width = table.shape[1]
    return table.uniform_(-0.5 / width, 0.5 / width)


class BagModel(Model):
    """Table of vectors of words or tokens on a device, in float32 regardless of `encode.dtype`.

    On a CPU the file of the table is mapped into memory, so that the workers of a machine share it.
    """

    def __init__(
        self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic, tokenizer: Tokenizer
    ) -> None:
        self.width, self.layers = int(folder.config["hidden_size"]), 0
        self.device = arithmetic.torch_device
        self._table = load_table(folder, checkpoint, tokenizer).to(arithmetic.torch_device)
        averaging = folder.averaging
        if averaging.sif is not None and averaging.counts is not None:
            frequencies = read_frequencies(averaging.counts)
            if frequencies.are_tokens:
                raise ModelError(
                    f"encoder.frequencies {averaging.counts}",
                    "counts of words (columns word and count), for encoder.sif",
                    "counts of tokens",
                    "count the corpus with these word vectors as encoder.path",
                )
            weights = sif_weights(tokenizer, frequencies, averaging.sif, lower=folder.lower)
            self._table = self._table._replace(weights=self.put(weights.astype(np.float32)))

    def forward(
        self, tokens: Tokens, wanted: set[int], max_tokens: int
    ) -> tuple[dict[int, Tensor], np.ndarray]:
        """Look up the weighted vectors (tokens, d); without layers, all hidden states are the same."""
        # a pooling looks the vectors up, long texts in blocks: those of a million tokens take gigabytes
        x = cast(Tensor, TokenVectors(self._table, self.put(tokens.ids)))
        return dict.fromkeys(wanted, x), tokens.offsets[:-1]


def sif_weights(tokenizer: Tokenizer, frequencies: Frequencies, a: float, *, lower: bool) -> np.ndarray:
    """Compute SIF weights a / (a + p), where p is a word's relative frequency (Arora et al. 2017, eq. 2).

    Args:
        tokenizer: has the vocabulary.
        frequencies: word counts.
        a: smoothing parameter, > 0.
        lower: the vocabulary is lowercase, so counts of spellings that differ in case are summed.

    Returns:
        (vocabulary,) float64; 1 for words without a count.
    """
    counts = frequencies.of_vocabulary(tokenizer.vocabulary(), lower=lower)
    return np.asarray(a / (a + counts / frequencies.counts.sum()))


def write_word_table_folder(
    settings: WordTableSettings, counts: Counter[str], folder: Path, *, seed: int
) -> None:
    """Write the encoder folder of new word vectors, whose sum is the vector of a text.

    The counts of the words are stored in the folder, too (frequencies.parquet), for negative sampling and
    for `encoder.sif`.

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
