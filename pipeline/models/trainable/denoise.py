"""Template denoising: templates without their texts (PromptBERT, Jiang et al. 2022, section 4.3)."""

from typing import NamedTuple

import numpy as np

from pipeline.text.tokens.tokens import Tokens


class EmptyTemplates(NamedTuple):
    """The different templates of some texts, without the texts."""

    tokens: Tokens
    positions: np.ndarray
    """(tokens,) positions that the tokens have with a text"""
    index_of_text: np.ndarray
    """(texts,) int64: index of the template of each text"""


def remove_texts(tokens: Tokens, positions: np.ndarray | None = None) -> EmptyTemplates:
    """Remove the texts from their templates.

    Every token keeps the position that it has with the text, so that templates of texts of different lengths
    differ.

    Args:
        tokens: texts in their templates.
        positions: (tokens,) position of each token; None: 0, 1, 2 ...
    """
    assert tokens.in_template is not None
    all_positions = tokens.positions if positions is None else positions
    in_template = np.flatnonzero(tokens.in_template)
    counts = np.bincount(tokens.owners[in_template], minlength=len(tokens))
    template_by_key: dict[bytes, int] = {}
    index_of_text: list[int] = []
    first_uses: list[np.ndarray] = []  # indices of the tokens of each different template
    for indices in np.split(in_template, np.cumsum(counts)[:-1]):
        key = tokens.ids[indices].tobytes() + all_positions[indices].tobytes()
        index_of_text.append(template_by_key.setdefault(key, len(template_by_key)))
        if len(template_by_key) > len(first_uses):
            first_uses.append(indices)
    chosen = np.concatenate(first_uses)
    templates = Tokens(
        ids=tokens.ids[chosen],
        offsets=np.cumsum([0, *map(len, first_uses)]),
        truncated=np.zeros(len(first_uses), bool),
        kept=None if tokens.kept is None else tokens.kept[chosen],
        in_template=np.ones(len(chosen), bool),
    )
    return EmptyTemplates(templates, all_positions[chosen], np.array(index_of_text, np.int64))


def texts_up_to(limit: int) -> Tokens:
    """Return one text of each length from 0 to `limit`, all of token 0."""
    offsets = np.cumsum([0, *range(limit + 1)])
    return Tokens(np.zeros(offsets[-1], np.int32), offsets, np.zeros(limit + 1, bool))
