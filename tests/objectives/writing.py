"""Encoders of three words for objectives with decoders, and the loss of a decoder by its equations."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.new_recurrent import write_recurrent_folder
from pipeline.objectives import Batch
from pipeline.objectives.encoder_decoder import EncoderDecoder
from pipeline.settings import EncoderSettings
from pipeline.settings.weights import RecurrentSettings
from tests.models.trainable.recurrents import gru_step, lstm_step
from tests.objectives.tiny import batch_of

STEPS = {"gru": gru_step, "lstm": lstm_step}
COUNTS = Counter({"zero": 81, "one": 16, "two": 1})


def new_folder(
    path: Path, directions: int = 1, counts: Counter[str] = COUNTS, cell: str = "gru"
) -> EncoderFolder:
    """A new encoder of three words and the three tokens for unknown words, start and end; 4 dimensions."""
    torch.set_num_threads(1)
    settings = RecurrentSettings(cell=cell, width=4 // directions, directions=directions, word_dim=3)
    write_recurrent_folder(settings, counts, path, seed=directions)
    return open_folder(EncoderSettings(path=str(path)))


def rows_of(folder: EncoderFolder, texts: dict[str, list[str]]) -> Batch:
    """A batch that the encoder's own tokenizer reads."""
    return replace(batch_of(texts), tokenize=folder.tokenizer())


def written_one_by_one(
    objective: EncoderDecoder, cell: str, vector: Tensor, role: str, ids: Sequence[int]
) -> Tensor:
    """-log P of one text, word after word from <s> to </s>, by the equations."""
    decoder, table = objective.decoders[role], objective.encoder.backbone.word_table
    inputs, recurrent = decoder.direction.input, decoder.direction.recurrent
    bias = torch.zeros(len(recurrent)).double() if inputs.bias is None else inputs.bias
    weights = torch.cat([inputs.weight, (decoder.condition.weight @ vector)[:, None]], dim=1)
    h = c = torch.zeros(4).double()
    total = torch.zeros(()).double()
    for word, following in pairwise(ids):
        x = torch.cat([table[word], table.new_ones(1)])  # C v is the weight of an input of 1
        h, c = STEPS[cell](x, h, c, weights, recurrent, bias)
        total = total - torch.log_softmax(objective.output @ h, 0)[following]
    return total
