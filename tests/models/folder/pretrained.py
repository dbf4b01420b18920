"""Small pretrained encoders, saved with sentence-transformers and loaded from their folders."""

import json
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer


def edit(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file, which may not exist yet; the value ... removes a key."""
    values = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(
        json.dumps({name: value for name, value in (values | changes).items() if value is not ...})
    )


def reference(folder: Path, pooling: str = "mean", **prompts: Any) -> SentenceTransformer:
    """Load a folder's transformer into a model of sentence-transformers, with a pooling and Normalize."""
    transformer = Transformer(str(folder))
    modules = [
        transformer,
        Pooling(transformer.get_word_embedding_dimension(), pooling_mode=pooling),
        Normalize(),
    ]
    return SentenceTransformer(modules=modules, device="cpu", **prompts)
