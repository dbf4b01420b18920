"""Which tokens an average leaves out: static token embeddings are biased by frequency, subwords, case and
punctuation (Jiang et al. 2022, PromptBERT).
"""

import unicodedata
from collections.abc import Callable, Mapping

import numpy as np

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.frequencies import Frequencies, read_frequencies
from pipeline.text.tokens.tokens import Tokenizer

_CONTINUES = "##"  # WordPiece: before a piece that continues a word
_BYTES, _SPACES = (
    "\u0120",
    "\u2581",
)  # byte-level BPE (RoBERTa) and SentencePiece (XLM-R): before a piece that begins a word


def load_filter(folder: EncoderFolder, tokenizer: Tokenizer) -> np.ndarray | None:
    """(vocabulary,) bool: the tokens that take part in averages; None where all do.

    With any filter on, the tokenizer's special tokens do not.

    ModelError for frequencies that cannot be read.
    """
    averages = folder.averages
    if not averages.exclude:
        return None
    counts = read_frequencies(averages.counts) if averages.frequent and averages.counts else None
    return kept_tokens(
        tokenizer, averages.exclude, words=folder.whole_words, counts=counts, frequent=averages.frequent
    )


def kept_tokens(
    tokenizer: Tokenizer, exclude: tuple[str, ...], *, words: bool, counts: Frequencies | None, frequent: int
) -> np.ndarray:
    """(vocabulary,) bool. words: each token is a whole word, so that none is a subword. frequent: how many of
    the commonest tokens by `counts` stay out.
    """
    vocabulary = tokenizer.vocabulary()
    marker = None if words else _marker(vocabulary)
    kept = np.ones(max(vocabulary.values(), default=-1) + 1, dtype=bool)
    kept[[*tokenizer.prefix, *tokenizer.suffix]] = False
    tests: dict[str, Callable[[str], bool]] = {
        "subword": lambda token: _is_subword(token, marker),
        "case": _has_upper_case,
        "punctuation": _is_punctuation,
    }
    spelled = _spelling(marker)
    for name in set(exclude) & set(tests):
        shown = (lambda token: token) if name == "subword" else spelled
        kept[[number for token, number in vocabulary.items() if tests[name](shown(token))]] = False
    if counts is not None:
        kept[_commonest(tokenizer, counts, marker, kept, frequent)] = False
    return kept


def _marker(vocabulary: Mapping[str, int]) -> str | None:
    """The convention that most tokens follow: in each kind of vocabulary a few odd tokens begin with the
    marker of another.
    """
    counts = {
        marker: sum(token.startswith(marker) for token in vocabulary)
        for marker in (_CONTINUES, _BYTES, _SPACES)
    }
    marker = max(counts, key=counts.__getitem__)
    return marker if counts[marker] else None


def _is_subword(token: str, marker: str | None) -> bool:
    """As it is published: under the second convention also the first word of a text and signs behind a word,
    which bear no marker.
    """
    if marker is None:
        return False
    return (
        token.startswith(_CONTINUES) and token != _CONTINUES
        if marker == _CONTINUES
        else not token.startswith(marker)
    )


def _spelling(marker: str | None) -> Callable[[str], str]:
    """From a token to the characters of the text that it stands for."""
    if marker == _BYTES:
        from tokenizers import decoders

        decoder = decoders.ByteLevel()
        return lambda token: str(decoder.decode([token])).strip()
    if marker == _CONTINUES:
        return lambda token: token.removeprefix(_CONTINUES) or token
    return lambda token: token.removeprefix(_SPACES) if marker == _SPACES else token


def _has_upper_case(text: str) -> bool:
    return text != text.lower()


def _is_punctuation(text: str) -> bool:
    """Signs alone; some bytes of a letter, which no character stands for, are none."""
    return bool(text) and all(unicodedata.category(sign)[0] in "PS" and sign != "\ufffd" for sign in text)


def _commonest(
    tokenizer: Tokenizer, counts: Frequencies, marker: str | None, kept: np.ndarray, most: int
) -> np.ndarray:
    """Ids of the `most` commonest tokens, special ones apart: the words pushed through the tokenizer, as they
    stand inside a text.
    """
    totals = np.zeros(len(kept))
    for words, numbers in counts.batches():
        rows = tokenizer.pieces([f" {word}" for word in words] if marker == _BYTES else words)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter((number for row in rows for number in row), np.int64, int(lengths.sum()))
        totals += np.bincount(ids, np.repeat(numbers, lengths), minlength=len(kept))
    totals[[*tokenizer.prefix, *tokenizer.suffix]] = 0
    commonest = np.argsort(-totals, kind="stable")[:most]
    return commonest[totals[commonest] > 0]
