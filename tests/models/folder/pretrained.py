"""Models of sentence-transformers that read the folders of small encoders."""

from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer


def reference(folder: Path, pooling: str = "mean", **prompts: Any) -> SentenceTransformer:
    """Load a folder's transformer into a model of sentence-transformers, with a pooling and Normalize."""
    transformer = Transformer(str(folder))
    modules = [
        transformer,
        Pooling(transformer.get_word_embedding_dimension(), pooling_mode=pooling),
        Normalize(),
    ]
    return SentenceTransformer(modules=modules, device="cpu", **prompts)
