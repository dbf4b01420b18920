"""Pairs of texts as one sequence of tokens, [CLS] a [SEP] b [SEP], with token types 0 and 1 (BERT).

This module needs no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ModelError
from pipeline.text.tokens.load_tokenizer import read_tokenizer
from pipeline.text.tokens.tokens import Side, Tokenizer, Tokens


@dataclass(frozen=True)
class PairFormat:
    """Special tokens of a pair, and its token types. The two texts are given as `Tokenizer` returns them."""

    prefix: tuple[int, ...]
    """special tokens before the first text, for a single text and for a pair"""
    middle: tuple[int, ...]
    """special tokens between the texts of a pair; their token type is 0"""
    suffix: tuple[int, ...]
    """special tokens after the last text, for a single text and for a pair"""
    has_types: bool
    """whether the second text and the tokens after it have token type 1; False if the model has only one
    type, or the tokenizer uses only one"""
    max_length: int
    """largest number of tokens of a pair, special tokens included"""
    truncation_side: Side

    @classmethod
    def load(cls, folder: Path, tokenizer: Tokenizer, config: Mapping[str, Any]) -> "PairFormat":
        """Read the format from the tokenizer files of a model folder.

        Args:
            folder: folder of config.json and the tokenizer.
            tokenizer: the tokenizer of single texts.
            config: contents of config.json.

        Raises:
            ModelError: the tokenizer puts no special token between two texts.
        """
        middle, tokenizer_has_types = _pair_template(read_tokenizer(folder))
        model_types = config.get("type_vocab_size") or (2 if config.get("model_type") == "bert" else 1)
        if not middle:
            raise ModelError(
                str(folder),
                "a tokenizer that puts a special token between the two texts of a pair",
                "none",
                "use an encoder such as BERT, or restore the post-processor of tokenizer.json",
            )
        return cls(
            tokenizer.prefix,
            middle,
            tokenizer.suffix,
            has_types=tokenizer_has_types and int(model_types) > 1,
            max_length=tokenizer.max_length,
            truncation_side=tokenizer.truncation_side,
        )

    def join(self, left: Tokens, right: Tokens, max_length: int | None = None) -> Tokens:
        """Join text i of `left` and text i of `right` to pair i.

        If a pair is too long, the longer text loses tokens first (`longest_first` of transformers).

        Args:
            left: n texts with their special tokens.
            right: n texts with their special tokens.
            max_length: largest number of tokens of a pair; None: the format's.
        """
        limit = min(max_length or self.max_length, self.max_length)
        room = limit - len(self.prefix) - len(self.middle) - len(self.suffix)
        specials = len(self.prefix) + len(self.suffix)
        lengths = np.stack([left.lengths, right.lengths], axis=1) - specials
        kept = _longest_first(lengths, room)
        ids, types, ends = [], [], [0]
        for row, (first, second) in enumerate(kept.tolist()):
            before = [*self.prefix, *self._text(left, row, first), *self.middle]
            after = [*self._text(right, row, second), *self.suffix]
            ids += before + after
            types += [0] * len(before) + [1] * len(after)
            ends.append(len(ids))
        return Tokens(
            np.array(ids, np.int32),
            np.array(ends, np.int64),
            left.truncated | right.truncated | (kept < lengths).any(axis=1),
            types=np.array(types, np.int64) if self.has_types else None,
        )

    def _text(self, tokens: Tokens, row: int, count: int) -> list[int]:
        """Return `count` ids of a text without its special tokens."""
        start = int(tokens.offsets[row]) + len(self.prefix)
        end = int(tokens.offsets[row + 1]) - len(self.suffix)
        ids = tokens.ids[end - count : end] if self.truncation_side == "start" else tokens.ids[start:][:count]
        return [int(each) for each in ids]


def _longest_first(lengths: np.ndarray, room: int) -> np.ndarray:
    """Return how many tokens, (n, 2), the texts of n pairs keep, so that each pair has at most `room`.

    A text that is shorter than half of the room is kept whole. Otherwise the shorter text gets half of the
    room and the longer one the rest; if both have the same length, the second counts as longer, as in the
    tokenizers library.
    """
    shorter, longer = lengths.min(axis=1), lengths.max(axis=1)
    of_shorter = np.where(lengths.sum(axis=1) > room, np.minimum(shorter, room // 2), shorter)
    of_longer = np.minimum(longer, room - of_shorter)
    first_is_longer = lengths[:, 0] > lengths[:, 1]
    return np.stack(
        [np.where(first_is_longer, of_longer, of_shorter), np.where(first_is_longer, of_shorter, of_longer)],
        axis=1,
    )


def _pair_template(loaded: Any) -> tuple[tuple[int, ...], bool]:
    """Return the special tokens between two texts, and whether the second one has another token type.

    A text is tokenized alone, without and with special tokens, and then as both texts of a pair.

    Args:
        loaded: a tokenizer of the tokenizers library, or of transformers.
    """

    is_backend = hasattr(loaded, "encode_batch_fast")
    if is_backend:
        loaded.no_padding()
        loaded.no_truncation()

    def encode(*texts: str, special: bool) -> tuple[list[int], list[int]]:
        if is_backend:
            encoding = loaded.encode(*texts, add_special_tokens=special)
            return list(encoding.ids), list(encoding.type_ids)
        encoded = loaded(*texts, add_special_tokens=special)
        return list(encoded["input_ids"]), list(encoded.get("token_type_ids", ()))

    (bare, _), (alone, _) = (encode("a", special=special) for special in (False, True))
    pair, types = encode("a", "a", special=True)
    before = next((start for start in range(len(alone)) if alone[start:][: len(bare)] == bare), 0)
    after = len(alone) - before - len(bare)
    return tuple(pair[before + len(bare) : len(pair) - after - len(bare)]), any(types)
