"""Tables of vectors of words or tokens, as this project, sentence-transformers and model2vec store them."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.static_embedding import TABLES
from pipeline.models.folder.word_vectors import TABLE
from pipeline.models.layers.weights import Checkpoint
from pipeline.text.tokens.tokens import Tokenizer


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
    """Vectors (tokens, d) of the tokens of a buffer, of which only those that are indexed are looked up."""

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
    rows = checkpoint.tensor(next(name for name in TABLES if name in checkpoint))
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
