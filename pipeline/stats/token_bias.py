"""Bias of token embeddings by frequency, sub-words and case (Jiang et al. 2022, PromptBERT, section 3)."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipeline.config import Settings
from pipeline.store.records.sealed_json import FileRef, Stored

_RANK_EDGES = (0, 100, 1_000, 10_000)  # bands of frequency ranks; further tokens are a band of their own
_UNSEEN = "not in the texts"


class TokenAttribute(NamedTuple):
    """A property of m tokens that divides them into groups."""

    groups: tuple[str, ...]
    codes: np.ndarray
    """(m,) index of each token's group"""


class TokenGroup(Settings):
    """Tokens of one group in the plane of a table's first two principal components."""

    attribute: str
    name: str
    code: int
    """index of the group in its attribute"""
    tokens: int
    x: float
    """mean of the first component"""
    y: float
    """mean of the second component"""
    norm: float
    """mean L2 norm of the embeddings"""


class ShownToken(Settings):
    """A token to draw."""

    token: str
    x: float
    y: float
    codes: tuple[int, ...]
    """index of its group, for each attribute"""


class TableBias(Stored):
    """Bias of one table of token embeddings."""

    table: str
    """input, output, or tied if both are equal"""
    explained: tuple[float, float]
    """proportions of the variance that the two components explain"""
    between: dict[str, float]
    """attribute -> proportion of the variance in the plane that is between its groups: 0 if the groups have
    equal means, 1 if all tokens of each group coincide"""
    groups: tuple[TokenGroup, ...]
    """groups of tokens"""
    shown: tuple[ShownToken, ...]
    """sample of tokens, evenly over the frequency ranks"""
    correlations: dict[str, float]
    """Spearman x100 of cosines of averaged embeddings with human scores, by what the averages leave out"""
    points: FileRef
    """Parquet file of all tokens: token, count, group of each attribute, x, y"""


class EncoderTokenBias(Stored):
    """Bias of the tables of one encoder."""

    space_id: str
    counted: str
    """where the token counts are from"""
    tables: tuple[TableBias, ...]
    missing: str | None
    """reason why there is no output table"""


class NamedTokenBias(Settings):
    """Bias of the tables of one encoder, named after the candidates that use it."""

    name: str
    bias: EncoderTokenBias


def rank_attribute(counts: np.ndarray) -> TokenAttribute:
    """Divide tokens by frequency rank: 1 to 100, to 1,000, to 10,000, further ranks, and count 0.

    Args:
        counts: (m,) number of occurrences. Tokens of equal counts keep their order.
    """
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    codes = np.searchsorted(_RANK_EDGES, ranks, side="right") - 1
    names = [f"rank {low + 1:,} to {high:,}" for low, high in pairwise(_RANK_EDGES)]
    codes[counts == 0] = len(_RANK_EDGES)
    return TokenAttribute((*names, f"rank {_RANK_EDGES[-1] + 1:,} and more", _UNSEEN), codes)


def principal_plane(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Project rows onto their first two principal components.

    The sign of a component is such that its entry of largest absolute value is positive.

    Args:
        rows: (m, d) rows, d >= 2.

    Returns:
        (m, 2) coordinates, and (2,) the proportions of the variance that they explain.
    """
    centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    components = vectors[:, [-1, -2]]
    components = components * np.sign(components[np.abs(components).argmax(axis=0), [0, 1]])
    return centred @ components, values[[-1, -2]] / max(values.sum(), np.finfo(np.float64).tiny)


def between_groups(points: np.ndarray, codes: np.ndarray) -> float:
    """Return the proportion of the variance of points (m, 2) that is between groups (m,): eta squared."""
    centred = points - points.mean(axis=0)
    total = float((centred**2).sum())
    means = [centred[codes == code] for code in np.unique(codes)]
    between = sum(len(part) * float((part.mean(axis=0) ** 2).sum()) for part in means)
    return between / total if total else 0.0


def groups_of(
    points: np.ndarray, norms: np.ndarray, attributes: Mapping[str, TokenAttribute]
) -> tuple[TokenGroup, ...]:
    """Describe the groups that have a token.

    Args:
        points: (m, 2) coordinates of the tokens.
        norms: (m,) L2 norms of their embeddings.
        attributes: attributes by name.
    """
    return tuple(
        TokenGroup(
            attribute=attribute,
            name=name,
            code=code,
            tokens=int(chosen.sum()),
            x=float(points[chosen, 0].mean()),
            y=float(points[chosen, 1].mean()),
            norm=float(norms[chosen].mean()),
        )
        for attribute, (names, codes) in attributes.items()
        for code, name in enumerate(names)
        if (chosen := codes == code).any()
    )
