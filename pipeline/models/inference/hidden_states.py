"""Compute hidden states of an encoder for analysis: all tokens in all layers, and rows of the word table."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.token_filter import spellings, unfiltered_tokens
from pipeline.models.layers.backbones import Model
from pipeline.models.spec.pooling import TABLE_STATE
from pipeline.stats.contextuality import States
from pipeline.stats.occurrences import Tokenized
from pipeline.text.tokens.tokens import Tokenizer, Tokens

_MAX_TOKENS = 8_192  # per pass; all layers' states are in host memory: 0.8 GB for 25 layers of width 1,024


class HiddenStates:
    """Hidden states H[0] (embedding layer) to H[layers] of a transformer encoder.

    The forward pass is the same as for the encoder's vectors.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, folder: EncoderFolder, max_tokens: int) -> None:
        if not model.has_token_states:
            raise ModelError(
                str(folder.path),
                "an encoder whose tokens have hidden states",
                "a deep averaging network, which has vectors of words and of pairs of words"
                if folder.family == "dan"
                else "paragraph vectors, which are made for a text as a whole",
                "name another encoder",
            )
        self.layers, self.width = model.layers, model.width
        self._model, self._tokenizer, self._folder = model, tokenizer, folder
        self._table_width = int(folder.config.get("embedding_size") or self.width)
        longest = 0 if folder.holds_any_text else folder.max_length
        self._max_tokens = max(min(max_tokens, _MAX_TOKENS), longest)

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Tokenize texts as the encoder does, with prompt and special tokens."""
        return self._tokenizer(texts)

    def states(self, tokens: Tokens) -> Iterator[States]:
        """Yield the states of all layers, float32, one forward pass at a time.

        All tokens of a text are included, also special ones; texts without tokens are skipped.
        """
        for rows in self._model.plan(tokens.lengths, self._max_tokens):
            yield States(rows, self._states(tokens, rows, list(range(self.layers + 1))))

    def words(self, tokens: Tokens) -> Tokenized:
        """Mark the tokens that are words: not special, not part of the prompt, not punctuation.

        A piece of a word counts as a word.
        """
        is_word = unfiltered_tokens(self._tokenizer, ("punctuation",), words=self._folder.whole_words)
        starts = max(len(self._tokenizer.prefix), self._tokenizer.prompt_tokens)
        ends = np.repeat(tokens.lengths - len(self._tokenizer.suffix), tokens.lengths)
        in_text = (starts <= tokens.positions) & (tokens.positions < ends)
        return Tokenized(tokens.ids, tokens.offsets, is_word[tokens.ids] & in_text)

    def spellings(self, ids: np.ndarray) -> list[str]:
        """Return tokens (m,) as text; a WordPiece token that continues a word keeps its mark ##."""
        return spellings(self._tokenizer, ids, words=self._folder.whole_words)

    def whole_words(self, ids: np.ndarray) -> np.ndarray:
        """Return (m,) bool: tokens that begin a word, neither pieces that continue one nor unknown tokens.

        If words begin with a mark, as in byte-level BPE, tokens without the mark do not count, such as the
        first word of a text.
        """
        begins_word = unfiltered_tokens(self._tokenizer, ("subword",), words=self._folder.whole_words)
        return np.asarray(begins_word[ids] & ~np.isin(ids, self._tokenizer.unknown))

    def table(self, ids: np.ndarray) -> np.ndarray:
        """Look up rows of the word table: (m, d) float32 for token ids (m,)."""
        rows = np.zeros((len(ids), self._table_width), np.float32)
        # looked up as texts of max_length tokens, the longest that the model accepts
        offsets = np.append(np.arange(0, len(ids), self._folder.max_length), len(ids))
        tokens = Tokens(ids.astype(np.int32), offsets, np.zeros(len(offsets) - 1, dtype=bool))
        for texts in self._model.plan(tokens.lengths, self._max_tokens):
            indices = np.concatenate([np.arange(offsets[text], offsets[text + 1]) for text in texts])
            (rows[indices],) = self._states(tokens, texts, [TABLE_STATE])
        return rows

    def _states(self, tokens: Tokens, rows: np.ndarray, numbers: list[int]) -> tuple[np.ndarray, ...]:
        """Compute the hidden states (tokens, d) with these numbers for the texts `rows`."""
        with torch.inference_mode():
            states, segments = self._model.states(tokens, rows, set(numbers), self._max_tokens, 0)
            return tuple(states[number][segments.indices].float().cpu().numpy() for number in numbers)
