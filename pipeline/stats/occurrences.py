"""Random occurrences of words in a corpus, chosen from token ids alone, before any forward pass."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Tokenized:
    """Tokens of n texts."""

    ids: np.ndarray
    """(tokens,) token ids, text after text"""
    offsets: np.ndarray
    """(n + 1,), text i has the tokens from offsets[i] to offsets[i + 1]"""
    is_word: np.ndarray
    """(tokens,) bool, False for special tokens, the tokens of a prompt, and punctuation"""

    @property
    def owners(self) -> np.ndarray:
        """(tokens,) index of the text that each token belongs to."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True, eq=False)
class Occurrences:
    """Word occurrences to examine; `words`, `pairs` and `random` are indices into `token_indices`."""

    token_indices: np.ndarray
    """(m,) indices of the occurrences among all tokens, ascending"""
    words: tuple[np.ndarray, ...]
    """for each chosen word, one occurrence per text that has it, in random order"""
    pairs: np.ndarray
    """(p, 2) random occurrences in different texts"""
    random: np.ndarray
    """(r,) a random occurrence in each of r random texts"""
    compared: int
    """number of occurrences of each word, from the first, that are compared in pairs"""


def occurrences_for_pairs(pairs: int) -> int:
    """Return the largest number of occurrences, at least 2, that form at most `pairs` pairs: 45 for 1,000.

    >>> occurrences_for_pairs(1_000)  # 45 * 44 / 2 = 990
    45
    """
    return max(2, int((1 + np.sqrt(1 + 8 * pairs)) / 2))


def choose_occurrences(
    tokens: Tokenized, *, min_texts: int, pairs: int, limit: int, seed: int
) -> Occurrences:
    """Choose words that occur in enough texts, and random occurrences for the baselines.

    A word is a token with `is_word`, which may be a subword.

    Args:
        tokens: the corpus.
        min_texts: smallest number of texts in which a chosen word occurs.
        pairs: number of random pairs to draw, and of random occurrences; also the largest number of pairs
            that one word's compared occurrences form.
        limit: largest number of occurrences of all chosen words together; if there are more, random words are
            left out.
        seed: seed of the random choices.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.flatnonzero(tokens.is_word))
    words = _choose_words(order, tokens, min_texts, limit, rng)
    random_pairs = _draw_pairs(np.sort(order), tokens.owners, pairs, rng)
    random = _draw_words(np.sort(order), tokens.owners, pairs, rng)
    token_indices = np.unique(np.concatenate([*words, random_pairs.ravel(), random]).astype(np.int64))
    return Occurrences(
        token_indices,
        words=tuple(np.searchsorted(token_indices, word) for word in words),
        pairs=np.searchsorted(token_indices, random_pairs),
        random=np.searchsorted(token_indices, random),
        compared=occurrences_for_pairs(pairs),
    )


def _choose_words(
    order: np.ndarray, tokens: Tokenized, min_texts: int, limit: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return the token indices of each chosen word's occurrences, at most `limit` in total.

    Of several occurrences of a word in one text, the first in `order` is taken. Words are chosen in a random
    order; a word is left out if its occurrences would exceed the limit.
    """
    ids, owners = tokens.ids[order].astype(np.int64), tokens.owners[order]
    word_and_text = ids * len(tokens.offsets) + owners  # one number for each pair of a word and a text
    firsts = np.sort(np.unique(word_and_text, return_index=True)[1])
    by_word = np.argsort(ids[firsts], kind="stable")
    groups = np.split(order[firsts][by_word], np.flatnonzero(np.diff(ids[firsts][by_word])) + 1)
    frequent = [group for group in groups if len(group) >= min_texts]
    words: list[np.ndarray] = []
    for number in rng.permutation(len(frequent)):
        if len(frequent[number]) <= limit:
            limit -= len(frequent[number])
            words.append(frequent[number])
    return words


def _draw_words(indices: np.ndarray, owners: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (count,) of the ascending token `indices`: uniformly a text with words, then one of its words."""
    if not len(indices):
        return indices
    _, starts, sizes = np.unique(owners[indices], return_index=True, return_counts=True)
    texts = rng.integers(len(starts), size=count)
    return indices[starts[texts] + rng.integers(sizes[texts])]


def _draw_pairs(indices: np.ndarray, owners: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw pairs (count, 2) of the ascending token `indices`; the two members are from different texts.

    Returns no pairs if all tokens belong to one text.
    """
    texts, starts, sizes = np.unique(owners[indices], return_index=True, return_counts=True)
    if len(texts) < 2:
        return np.zeros((0, 2), np.int64)
    left = rng.integers(len(indices), size=count)
    text = np.searchsorted(texts, owners[indices[left]])
    right = np.floor(rng.random(count) * (len(indices) - sizes[text])).astype(np.int64)
    right += np.where(right >= starts[text], sizes[text], 0)  # skip the tokens of the same text
    return np.stack([indices[left], indices[right]], axis=1)
