"""Prompt objectives over small encoders with a language model head."""

from dataclasses import replace
from pathlib import Path

import torch

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import OBJECTIVES, Batch, Objective
from pipeline.settings import EncoderSettings
from tests.objectives.tiny import batch_of

TEXTS = [
    "Two dogs run on the grass.",
    "A man reads.",
    "x",
    "A girl reads a book on the grass.",
    "The cat's café",
    "two dogs",
]

BERT_TEMPLATES = ('This sentence of "[X]" means [MASK].', 'This sentence : "[X]" means [MASK].')


def build(path: Path, name: str, dropout: float = 0.0, **options: object) -> Objective:
    """Build a prompt objective around the encoder of a folder."""
    torch.manual_seed(0)
    encoder = load_trainable(open_folder(EncoderSettings(path=str(path))), dropout=dropout)
    return OBJECTIVES[name](encoder, **options)


def batch(path: Path, **columns: list[str]) -> Batch:
    """Return a batch that the folder's tokenizer reads."""
    return replace(batch_of(columns), tokenize=open_folder(EncoderSettings(path=str(path))).tokenizer())
