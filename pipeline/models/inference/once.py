"""Encode texts in one call, with an encoder that is loaded at the first call and cached."""

import functools
from collections.abc import Sequence

import numpy as np

from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings

_load_cached = functools.lru_cache(maxsize=2)(load_encoder)  # two, so that a caller can compare them


def encode(
    texts: str | Sequence[str],
    encoder: str | EncoderSettings = "all-MiniLM-L6-v2",
    *,
    query: bool = False,
    device: str = "cpu",
) -> np.ndarray:
    """Encode one text or several. The encoder is loaded at the first call; the last two used are cached.

    Args:
        texts: a string; or n strings as a sequence, a NumPy or pyarrow array, or a pandas or Polars series.
        encoder: a folder, URI, file of word vectors or hub id, alone or with further settings.
        query: put the query prompt before the texts, for searching among texts encoded without it.
        device: cpu, cuda, or auto.

    Returns:
        float32, (dim,) for a string, else (n, dim) in input order.

    Raises:
        TypeError: a text is not a string.
        ModelError: the encoder cannot be used; the message names file, expected and found.
    """
    settings = EncoderSettings(path=encoder) if isinstance(encoder, str) else encoder
    return _load_cached(settings, device=device).encode(texts, query=query)
