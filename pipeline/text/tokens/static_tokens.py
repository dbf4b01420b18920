"""Load the tokenizer of static embeddings, which reads texts as sentence-transformers or model2vec does."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.text.tokens.load_tokenizer import from_backend, read_tokenizer
from pipeline.text.tokens.tokens import Side, Tokenizer

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class Model2VecTokenizer(Tokenizer):
    """Tokenizer that leaves out unknown tokens, after it has truncated a text to max_length tokens."""

    max_characters: int = 0
    """characters that are read of a text, its prompt included"""
    left_out: int | None = None
    """id of the unknown token; None: the vocabulary has none"""

    def _tokenize_contents(self, texts: list[str]) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """Tokenize texts; tokens that were left out count as skipped words."""
        beginnings = [text[: self.max_characters] for text in texts]
        rows, absent = super()._tokenize_contents(beginnings)
        contents, counts = [], []
        for text, beginning, row, (lost, _) in zip(texts, beginnings, rows, absent, strict=True):
            unread = (len(text) - len(beginning)) / max(1, len(beginning))
            contents.append([token for token in row if token != self.left_out])
            counts.append((lost + round((len(row) + lost) * unread), len(row) - len(contents[-1])))
        return contents, counts


def load_static(
    folder: Path, max_length: int, *, prompt: str, lower: bool, truncation_side: Side
) -> Tokenizer:
    """Load the tokenizer of a StaticEmbedding module, which adds no special tokens.

    Raises:
        ModelError: tokenizer.json is damaged.
    """
    tokenizer = from_backend(_read_plain(folder), folder, max_length, prompt=prompt, lower=lower)
    return replace(tokenizer, prefix=(), suffix=(), types=None, truncation_side=truncation_side)


def load_model2vec(
    folder: Path, max_length: int, *, prompt: str, lower: bool, truncation_side: Side
) -> Tokenizer:
    """Load the tokenizer of a folder of model2vec.

    That library reads as many characters of a text as `max_length` tokens of median length have, truncates
    the text to `max_length` tokens, and then leaves out unknown ones.

    Raises:
        ModelError: tokenizer.json is damaged.
    """
    plain = load_static(folder, max_length, prompt=prompt, lower=lower, truncation_side=truncation_side)
    median = int(np.median([len(token) for token in plain.vocabulary()] or [1]))
    return Model2VecTokenizer(
        **{field.name: getattr(plain, field.name) for field in fields(plain)},
        max_characters=max_length * median,
        left_out=_unknown_id(_read_plain(folder)),
    )


def _read_plain(folder: Path) -> "tokenizers.Tokenizer":
    """Read tokenizer.json, without its special tokens."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import processors

    backend = read_tokenizer(folder, alone=True)
    assert isinstance(backend, Backend), "the folder has a tokenizer.json"
    backend.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    return backend


def _unknown_id(backend: "tokenizers.Tokenizer") -> int | None:
    """Return the id of the unknown token; None if there is none."""
    if not hasattr(backend.model, "unk_token"):  # Unigram, whose other settings only the JSON has
        unigram = json.loads(backend.to_str())["model"].get("unk_id")
        return None if unigram is None else int(unigram)
    name = backend.model.unk_token
    return None if name is None else backend.token_to_id(name)
