"""Encoders of three words with known vectors or counts, and the loss of a decoder by its equations."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from pipeline.models.classic.recurrent import write_recurrent_folder
from pipeline.models.classic.word_table import write_word_table_folder
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.objectives import Batch
from pipeline.objectives.encoder_decoder import EncoderDecoder
from pipeline.objectives.fastsent import FastSent
from pipeline.objectives.word2vec import Word2Vec
from pipeline.settings import EncoderSettings
from pipeline.settings.weights import RecurrentSettings, WordTableSettings
from tests.models.classic.recurrents import gru_step, lstm_step
from tests.objectives.tiny import batch_of

CELLS = {"gru": gru_step, "lstm": lstm_step}
COUNTS = Counter({"zero": 81, "one": 16, "two": 1})
WORD_VECTORS = [[1, 0], [0, 1], [1, 1]]
OUTPUT_VECTORS = [[1, 0], [0, 0.5], [-1, 1]]


def new_word_table(path: Path) -> EncoderFolder:
    """Write an encoder of word vectors in 2 dimensions; return its folder."""
    torch.set_num_threads(1)
    write_word_table_folder(WordTableSettings(dim=2), COUNTS, path, seed=0)
    return open_folder(EncoderSettings(path=str(path)))


def set_known_vectors(objective: FastSent | Word2Vec) -> None:
    """Give the words the vectors of hand computations, as input and as output."""
    with torch.no_grad():
        objective.encoder.backbone.word_table.copy_(torch.tensor(WORD_VECTORS))
        objective.output.copy_(torch.tensor(OUTPUT_VECTORS))


def new_recurrent(
    path: Path, directions: int = 1, counts: Counter[str] = COUNTS, cell: str = "gru"
) -> EncoderFolder:
    """Write a recurrent encoder of 4 dimensions; return its folder.

    Besides the words, its vocabulary has the tokens for unknown words, start and end.
    """
    torch.set_num_threads(1)
    settings = RecurrentSettings(cell=cell, width=4 // directions, directions=directions, word_dim=3)
    write_recurrent_folder(settings, counts, path, seed=directions)
    return open_folder(EncoderSettings(path=str(path)))


def rows_of(folder: EncoderFolder, columns: dict[str, list[str]]) -> Batch:
    """Return a batch that the encoder's own tokenizer reads."""
    return replace(batch_of(columns), tokenize=folder.tokenizer())


def decoder_loss(
    objective: EncoderDecoder, cell: str, vectors: Tensor, role: str, texts: Sequence[str]
) -> Tensor:
    """Compute the mean over n texts of -log P(text | vector), one word at a time, by the cell's equations.

    Args:
        objective: objective with a decoder for `role`.
        cell: kind of the decoder's recurrent cell.
        vectors: (n, 4).
        role: role of the texts.
        texts: n texts to predict.
    """
    tokenizer = objective.encoder.folder.tokenizer()
    losses = [
        _loss_of_text(objective, cell, vector, role, tokenizer([text]).ids.tolist())
        for vector, text in zip(vectors, texts, strict=True)
    ]
    return torch.stack(losses).mean()


def _loss_of_text(
    objective: EncoderDecoder, cell: str, vector: Tensor, role: str, ids: Sequence[int]
) -> Tensor:
    """Compute -log P of one text, from the word after the start token to the end token."""
    decoder, table = objective.decoders[role], objective.encoder.backbone.word_table
    inputs, recurrent = decoder.direction.input, decoder.direction.recurrent
    bias = torch.zeros(len(recurrent)).double() if inputs.bias is None else inputs.bias
    weights = torch.cat([inputs.weight, (decoder.condition.weight @ vector)[:, None]], dim=1)
    h = c = torch.zeros(4).double()
    total = torch.zeros(()).double()
    for word, following in pairwise(ids):
        x = torch.cat([table[word], table.new_ones(1)])  # C v is the weight of an input of 1
        h, c = CELLS[cell](x, h, c, weights, recurrent, bias)
        total = total - torch.log_softmax(objective.output @ h + objective.bias, 0)[following]
    return total
