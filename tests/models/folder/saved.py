"""Folders that sentence-transformers saves, and their vectors."""

from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from tests.models.folders import TEXTS, encoder_at


def encoded(folder, **changes) -> np.ndarray:
    return encoder_at(folder, **changes).encode(TEXTS)


def save_sentence_transformer(
    source: Path, folder: Path, pooling="mean", dense: bool = True, **prompts
) -> SentenceTransformer:
    """Make and save a model of a transformer, a pooling, two Dense layers if `dense`, and Normalize."""
    torch.manual_seed(1)
    body = Transformer(str(source), max_seq_length=40)
    modules = [body, Pooling(48, pooling)]
    if dense:
        width = modules[1].get_embedding_dimension()
        modules += [
            Dense(width, 32),
            Dense(32, 20, bias=False, activation_function=torch.nn.Identity(), use_residual=True),
        ]
    model = SentenceTransformer(modules=[*modules, Normalize()], device="cpu", **prompts)
    model.save_pretrained(str(folder))
    return model
