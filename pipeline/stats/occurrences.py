"""Random occurrences of words in a corpus, chosen from token ids alone, before any forward pass."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Tokenized:
    """Tokens of n texts.

    Attributes:
        ids: (tokens,) token ids, text after text.
        offsets: (n + 1,), text i has the tokens from offsets[i] to offsets[i + 1].
        is_word: (tokens,) bool, False for special tokens, the tokens of a prompt, and punctuation.
    """

    ids: np.ndarray
    offsets: np.ndarray
    is_word: np.ndarray

    @property
    def owners(self) -> np.ndarray:
        """(tokens,) index of each token's text."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True, eq=False)
class Occurrences:
    """Word occurrences to examine. All fields but `kept` are indices into `kept`.

    Attributes:
        kept: (m,) indices of the occurrences among all tokens, ascending.
        words: for each chosen word, one occurrence per text.
        pairs: (p, 2) random occurrences in different texts.
        pool: (q,) random occurrences of different words, in random order.
    """

    kept: np.ndarray
    words: tuple[np.ndarray, ...]
    pairs: np.ndarray
    pool: np.ndarray


def most_occurrences(pairs: int) -> int:
    """Return the largest number of occurrences that have at most this many pairs: 45 for 1,000."""
    return max(2, int((1 + np.sqrt(1 + 8 * pairs)) / 2))


def choose_occurrences(tokens: Tokenized, *, contexts: int, pairs: int, most: int, seed: int) -> Occurrences:
    """Choose words that occur in enough texts, and random occurrences for the baselines.

    A word is a token: pieces of words count as words.

    Args:
        tokens: the corpus.
        contexts: smallest number of texts in which a chosen word occurs.
        pairs: number of random pairs; the occurrences of a word have at most as many pairs.
        most: largest number of word occurrences in total; beyond it, words are left out at random.
        seed: of the random choices.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.flatnonzero(tokens.is_word))
    words = _choose_words(order, tokens, contexts, most_occurrences(pairs), most, rng)
    drawn = _draw_pairs(np.sort(order), tokens.owners, pairs, rng)
    firsts = np.unique(tokens.ids[order], return_index=True)[1]  # of each word, in random order
    pool = rng.permutation(order[firsts])[:pairs]
    kept = np.unique(np.concatenate([*words, drawn.ravel(), pool]).astype(np.int64))
    return Occurrences(
        kept,
        tuple(np.searchsorted(kept, word) for word in words),
        np.searchsorted(kept, drawn),
        np.searchsorted(kept, pool),
    )


def _choose_words(
    order: np.ndarray, tokens: Tokenized, contexts: int, each: int, most: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return token indices of up to `each` occurrences per chosen word, the first in `order` of each text."""
    ids, owners = tokens.ids[order].astype(np.int64), tokens.owners[order]
    firsts = np.sort(np.unique(ids * (len(tokens.offsets)) + owners, return_index=True)[1])
    by_word = np.argsort(ids[firsts], kind="stable")
    groups = np.split(order[firsts][by_word], np.flatnonzero(np.diff(ids[firsts][by_word])) + 1)
    frequent = [group[:each] for group in groups if len(group) >= contexts]
    shuffled = [frequent[number] for number in rng.permutation(len(frequent))]
    ends = np.cumsum([len(group) for group in shuffled])
    return shuffled[: int(np.searchsorted(ends, most, side="right"))]


def _draw_pairs(indices: np.ndarray, owners: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (count, 2) of the ascending token `indices`: a random one, and another from a different text.

    Returns no pairs if all tokens are of one text.
    """
    texts, starts, sizes = np.unique(owners[indices], return_index=True, return_counts=True)
    if len(texts) < 2:
        return np.zeros((0, 2), np.int64)
    left = rng.integers(len(indices), size=count)
    own = np.searchsorted(texts, owners[indices[left]])
    right = np.floor(rng.random(count) * (len(indices) - sizes[own])).astype(np.int64)
    right += np.where(right >= starts[own], sizes[own], 0)  # skip the tokens of the same text
    return np.stack([indices[left], indices[right]], axis=1)
