"""Texts without a vector, such as words that are missing from the vocabulary of word vectors."""

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np

from pipeline.evaluate.similarity import is_sparse
from pipeline.log import counted

WITHOUT_VECTOR = "without_vector"  # key in the facts of a score: number of texts without a vector
_MAX_NAMED = 10  # largest number of missing texts to name


def has_vector(x: np.ndarray) -> np.ndarray:
    """Return (n,) bool: False for zero rows of x (n, d), the vectors of texts without any known word."""
    if is_sparse(x):
        return np.asarray(abs(x).sum(axis=1)).ravel() > 0
    return np.asarray(x.any(axis=1))


def missing_texts(texts: Sequence[str], x: np.ndarray) -> list[str]:
    """Return the distinct texts whose vector, a row of x (n, d), is zero, in order of appearance."""
    return list(dict.fromkeys(compress(texts, ~has_vector(x))))


def missing_facts(missing: Sequence[str]) -> dict[str, Any]:
    """Return the number of texts without a vector, and the first of them, for the facts of a score."""
    if not missing:
        return {WITHOUT_VECTOR: 0}
    return {WITHOUT_VECTOR: len(missing), "first_without_vector": list(missing[:_MAX_NAMED])}


def missing_warnings(task: str, missing: Sequence[str], effect: str) -> tuple[str, ...]:
    """Return a warning that names texts without a vector; () if there are none.

    Args:
        task: name of the task.
        missing: the texts.
        effect: their effect on the score, as a sentence.
    """
    if not missing:
        return ()
    ellipsis = ", ..." if len(missing) > _MAX_NAMED else ""
    names = ", ".join(repr(text[:80]) for text in missing[:_MAX_NAMED]) + ellipsis
    texts = counted(len(missing), "text")
    return (f"{task}: the encoder gave {texts} no usable vector ({names}): {effect}",)
