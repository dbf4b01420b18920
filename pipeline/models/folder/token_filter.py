"""Find the tokens that an average of token vectors leaves out, such as punctuation.

Static token embeddings are biased by frequency, subwords, case and punctuation (Jiang et al. 2022,
PromptBERT).
"""

import unicodedata
from collections.abc import Callable, Mapping

import numpy as np

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.frequencies import Frequencies, read_frequencies
from pipeline.text.tokens.tokens import Tokenizer

# Markers at the beginning of tokens.
_CONTINUATION = "##"  # WordPiece: the token continues a word
_BPE_SPACE = "\u0120"  # byte-level BPE (RoBERTa): the token begins a word
_SENTENCEPIECE_SPACE = "\u2581"  # SentencePiece (XLM-R): the token begins a word


def load_filter(folder: EncoderFolder, tokenizer: Tokenizer) -> np.ndarray | None:
    """Return a mask of the tokens that averages use, (vocabulary,) bool; None if there is no filter.

    Every filter also leaves out the tokenizer's special tokens.

    Raises:
        ModelError: the word counts cannot be read.
    """
    averaging = folder.averaging
    if not averaging.exclude:
        return None
    kept = unfiltered_tokens(tokenizer, averaging.exclude, words=folder.whole_words)
    if averaging.frequent and averaging.counts:
        frequent = _most_frequent(
            tokenizer, read_frequencies(averaging.counts), folder.whole_words, averaging.frequent
        )
        kept[frequent] = False
    return kept


def unfiltered_tokens(tokenizer: Tokenizer, exclude: tuple[str, ...], *, words: bool) -> np.ndarray:
    """Return a mask of the tokens that are neither special nor excluded by their spelling.

    Args:
        tokenizer: has the vocabulary.
        exclude: names of filters; `frequent` is ignored.
        words: True if each token is a whole word, so that none is a subword.

    Returns:
        (vocabulary,) bool.
    """
    vocabulary = tokenizer.vocabulary()
    marker = None if words else _marker(vocabulary)
    kept = np.ones(max(vocabulary.values(), default=-1) + 1, dtype=bool)
    kept[[*tokenizer.prefix, *tokenizer.suffix]] = False
    spelling = _spelling(marker)
    filters: dict[str, Callable[[str], bool]] = {
        "subword": lambda token: _is_subword(token, marker),
        "case": lambda token: spelling(token) != spelling(token).lower(),
        "punctuation": lambda token: _is_punctuation(spelling(token)),
    }
    for name in set(exclude) & set(filters):
        kept[[token_id for token, token_id in vocabulary.items() if filters[name](token)]] = False
    return kept


def spellings(tokenizer: Tokenizer, ids: np.ndarray, *, words: bool) -> list[str]:
    """Return tokens as text, without the mark of a token that begins a word; ## is kept.

    Args:
        tokenizer: has the vocabulary.
        ids: (m,) token ids.
        words: True if each token is a whole word.
    """
    vocabulary = tokenizer.vocabulary()
    marker = None if words else _marker(vocabulary)
    spelling = _spelling(None if marker == _CONTINUATION else marker)
    tokens = {token_id: token for token, token_id in vocabulary.items()}
    return [spelling(tokens[token_id]) for token_id in ids.tolist()]


def _marker(vocabulary: Mapping[str, int]) -> str | None:
    """Return the most frequent marker, since a few tokens may begin with another marker; None if there are
    none.
    """
    counts = {
        marker: sum(token.startswith(marker) for token in vocabulary)
        for marker in (_CONTINUATION, _BPE_SPACE, _SENTENCEPIECE_SPACE)
    }
    marker = max(counts, key=counts.__getitem__)
    return marker if counts[marker] else None


def _is_subword(token: str, marker: str | None) -> bool:
    """Return whether a token is a subword, as Jiang et al. count them.

    If the marker begins words, the first word of a text and punctuation count as subwords, too.
    """
    if marker == _CONTINUATION:
        return token.startswith(_CONTINUATION) and token != _CONTINUATION
    return marker is not None and not token.startswith(marker)


def _spelling(marker: str | None) -> Callable[[str], str]:
    """Return a function from a token to the characters of the text that it represents."""
    if marker == _BPE_SPACE:
        from tokenizers import decoders

        decoder = decoders.ByteLevel()
        return lambda token: str(decoder.decode([token])).strip()
    if marker == _CONTINUATION:
        return lambda token: token.removeprefix(_CONTINUATION) or token
    return lambda token: token.removeprefix(_SENTENCEPIECE_SPACE) if marker == _SENTENCEPIECE_SPACE else token


def _is_punctuation(text: str) -> bool:
    """Return whether all characters are punctuation or symbols; U+FFFD, an incomplete character, is not."""
    return bool(text) and all(unicodedata.category(char)[0] in "PS" and char != "\ufffd" for char in text)


def token_counts(tokenizer: Tokenizer, counts: Frequencies, *, words: bool) -> np.ndarray:
    """Count the tokens of a vocabulary: (vocabulary,) float64.

    Args:
        tokenizer: has the vocabulary.
        counts: counts of tokens, or of words, which are tokenized.
        words: True if each token is a whole word.
    """
    vocabulary = tokenizer.vocabulary()
    # inside a text, a space precedes each word and belongs to its first token
    has_spaces = not words and _marker(vocabulary) == _BPE_SPACE
    totals = np.zeros(max(vocabulary.values(), default=-1) + 1)
    for batch, word_counts in counts.batches():
        if counts.are_tokens:
            rows = [[vocabulary[token]] if token in vocabulary else [] for token in batch]
        else:
            rows = tokenizer.text_ids([f" {word}" for word in batch] if has_spaces else batch)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter((token_id for row in rows for token_id in row), np.int64, int(lengths.sum()))
        totals += np.bincount(ids, np.repeat(word_counts, lengths), minlength=len(totals))
    return totals


def _most_frequent(tokenizer: Tokenizer, counts: Frequencies, words: bool, number: int) -> np.ndarray:
    """Return the ids of the `number` most frequent tokens, without special ones."""
    totals = token_counts(tokenizer, counts, words=words)
    totals[[*tokenizer.prefix, *tokenizer.suffix]] = 0
    ids_by_count = np.argsort(-totals, kind="stable")[:number]
    return ids_by_count[totals[ids_by_count] > 0]
