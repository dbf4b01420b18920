"""Tokens that averages leave out.

Static token embeddings are biased by frequency, subwords, case and punctuation (Jiang et al. 2022,
PromptBERT).
"""

import unicodedata
from collections.abc import Callable, Mapping

import numpy as np

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.frequencies import Frequencies, read_frequencies
from pipeline.text.tokens.tokens import Tokenizer

_CONTINUES = "##"  # WordPiece: before a piece that continues a word
# byte-level BPE (RoBERTa) and SentencePiece (XLM-R): before a piece that begins a word
_BYTES, _SPACES = "\u0120", "\u2581"


def load_filter(folder: EncoderFolder, tokenizer: Tokenizer) -> np.ndarray | None:
    """Mask of the tokens that averages use, (vocabulary,) bool; None if there is no filter.

    Every filter also leaves out the tokenizer's special tokens.

    Raises:
        ModelError: the word counts cannot be read.
    """
    averages = folder.averages
    if not averages.exclude:
        return None
    kept = kept_tokens(tokenizer, averages.exclude, words=folder.whole_words)
    if averages.frequent and averages.counts:
        common = _commonest(
            tokenizer, read_frequencies(averages.counts), folder.whole_words, averages.frequent
        )
        kept[common] = False
    return kept


def kept_tokens(tokenizer: Tokenizer, exclude: tuple[str, ...], *, words: bool) -> np.ndarray:
    """Mask (vocabulary,) bool of the tokens that are neither special nor excluded by their spelling.

    Args:
        tokenizer: has the vocabulary.
        exclude: names of filters; `frequent` is ignored.
        words: each token is a whole word, so that none is a subword.
    """
    vocabulary = tokenizer.vocabulary()
    marker = None if words else _marker(vocabulary)
    kept = np.ones(max(vocabulary.values(), default=-1) + 1, dtype=bool)
    kept[[*tokenizer.prefix, *tokenizer.suffix]] = False
    text = _spelling(marker)
    tests: dict[str, Callable[[str], bool]] = {
        "subword": lambda token: _is_subword(token, marker),
        "case": lambda token: text(token) != text(token).lower(),
        "punctuation": lambda token: _is_punctuation(text(token)),
    }
    for name in set(exclude) & set(tests):
        kept[[number for token, number in vocabulary.items() if tests[name](token)]] = False
    return kept


def _marker(vocabulary: Mapping[str, int]) -> str | None:
    """Marker of the most tokens; in each kind of vocabulary, a few tokens begin with that of another."""
    counts = {
        marker: sum(token.startswith(marker) for token in vocabulary)
        for marker in (_CONTINUES, _BYTES, _SPACES)
    }
    marker = max(counts, key=counts.__getitem__)
    return marker if counts[marker] else None


def _is_subword(token: str, marker: str | None) -> bool:
    """True for subwords as published: without a leading-space marker, also a text's first word and signs."""
    if marker == _CONTINUES:
        return token.startswith(_CONTINUES) and token != _CONTINUES
    return marker is not None and not token.startswith(marker)


def _spelling(marker: str | None) -> Callable[[str], str]:
    """Return a function from a token to the characters of the text that it represents."""
    if marker == _BYTES:
        from tokenizers import decoders

        decoder = decoders.ByteLevel()
        return lambda token: str(decoder.decode([token])).strip()
    if marker == _CONTINUES:
        return lambda token: token.removeprefix(_CONTINUES) or token
    return lambda token: token.removeprefix(_SPACES) if marker == _SPACES else token


def _is_punctuation(text: str) -> bool:
    """True if all characters are signs; false for some bytes of a character, which decode to U+FFFD."""
    return bool(text) and all(unicodedata.category(sign)[0] in "PS" and sign != "\ufffd" for sign in text)


def _commonest(tokenizer: Tokenizer, counts: Frequencies, words: bool, most: int) -> np.ndarray:
    """Ids of the `most` commonest tokens, without special ones, of the words as they occur inside a text."""
    vocabulary = tokenizer.vocabulary()
    spaced = not words and _marker(vocabulary) == _BYTES
    totals = np.zeros(max(vocabulary.values(), default=-1) + 1)
    for batch, numbers in counts.batches():
        rows = tokenizer.pieces([f" {word}" for word in batch] if spaced else batch)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter((number for row in rows for number in row), np.int64, int(lengths.sum()))
        totals += np.bincount(ids, np.repeat(numbers, lengths), minlength=len(totals))
    totals[[*tokenizer.prefix, *tokenizer.suffix]] = 0
    commonest = np.argsort(-totals, kind="stable")[:most]
    return commonest[totals[commonest] > 0]
