"""What lies inside an encoder: the hidden states of every token, layer by layer, which tokens are words, and the table they come from."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from pipeline.models.folder import EncoderFolder
from pipeline.stats.contextuality import States, Tokenized
from pipeline.text.tokens import Tokenizer, Tokens

if TYPE_CHECKING:
    from pipeline.models.encoder import Model

_MAX_TOKENS = 8_192         # of one pass: all layers of it are held on the host, 0.8 GB for 25 of width 1,024


class Inside:
    """The hidden states H[0] (embedding layer) to H[layers] of a transformer encoder, through the same forward pass that makes its vectors."""

    def __init__(self, model: "Model", tokenizer: Tokenizer, folder: EncoderFolder, max_tokens: int) -> None:
        self.layers, self.width = model.layers, model.width
        self._model, self._tokenizer, self._folder = model, tokenizer, folder
        self._max_tokens = max(min(max_tokens, _MAX_TOKENS), folder.max_length)

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """The texts as the encoder reads them."""
        return self._tokenizer(texts)

    def states(self, tokens: Tokens) -> Iterator[States]:
        """All layers of all texts that have tokens, a forward pass at a time; every token, special ones too. float32."""
        for rows in self._model.plan(tokens.lengths, self._max_tokens):
            yield self._pass(tokens, rows)

    def words(self, tokens: Tokens) -> Tokenized:
        """Which tokens are words: no special tokens, no prompt, no punctuation. A piece of a word counts as a word."""
        known, places = np.unique(tokens.ids, return_inverse=True)
        spelled, special = _spelling(self._folder)
        worded = np.array([number not in special and is_word(spelled(number)) for number in known.tolist()], dtype=bool)
        lengths = tokens.lengths
        inside = np.arange(len(tokens.ids)) - np.repeat(tokens.offsets[:-1], lengths)
        before, after = max(len(self._tokenizer.prefix), self._tokenizer.prompt_tokens), len(self._tokenizer.suffix)
        text = (inside >= before) & (inside < np.repeat(lengths, lengths) - after)
        return Tokenized(tokens.ids, tokens.offsets, worded[places] & text)

    def _pass(self, tokens: Tokens, rows: np.ndarray) -> States:
        with torch.inference_mode():
            states, where = self._model.states(tokens, rows, set(range(self.layers + 1)), self._max_tokens, 0)
            return States(rows, tuple(states[number][where.places].float().cpu().numpy() for number in range(self.layers + 1)))


def is_word(token: str) -> bool:
    """Whether a token's own text holds more than punctuation and symbols; a piece of a character (U+FFFD) counts as a word."""
    text = token.strip().removeprefix("##").strip("▁Ġ ")
    return any(letter == "\ufffd" or unicodedata.category(letter)[0] not in "PSZC" for letter in text)


def _spelling(folder: EncoderFolder) -> tuple[Callable[[int], str], set[int]]:
    """(text of a token id, ids of special tokens such as [UNK])."""
    file = folder.beside_config("tokenizer.json")
    if not file.is_file():
        from transformers import AutoTokenizer

        made = AutoTokenizer.from_pretrained(str(folder.path / folder.transformer), local_files_only=True)
        return (lambda number: str(made.decode([number]))), set(made.all_special_ids)
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(file))
    special = {number for number, token in backend.get_added_tokens_decoder().items() if token.special}
    return (lambda number: str(backend.decode([number], skip_special_tokens=False))), special
