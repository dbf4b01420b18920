"""Template denoising: vectors of templates without a text (Jiang et al. 2022, PromptBERT, section 4.3)."""

import numpy as np

from pipeline.text.tokens.tokens import Tokens


def without_texts(
    tokens: Tokens, positions: np.ndarray | None = None
) -> tuple[Tokens, np.ndarray, np.ndarray]:
    """Remove the texts from their templates.

    Every token keeps the position that it has with the text, so that templates of texts of different lengths
    differ.

    Args:
        tokens: n texts in their templates.
        positions: (tokens,) position of each token; None: 0, 1, 2 ...

    Returns:
        The m different templates, the positions of their tokens, and (n,) the index of each text's template.
    """
    assert tokens.around is not None
    counts = np.bincount(tokens.owners[tokens.around], minlength=len(tokens))
    cuts, own = np.cumsum(counts)[:-1], tokens.positions if positions is None else positions
    ids, kept_positions = (np.split(each[tokens.around], cuts) for each in (tokens.ids, own))
    first: dict[bytes, int] = {}
    keys = [one.tobytes() + other.tobytes() for one, other in zip(ids, kept_positions, strict=True)]
    templates = np.array([first.setdefault(key, len(first)) for key in keys], np.int64)
    rows = np.unique(templates, return_index=True)[1]
    alone = tokens.of_rows(rows)
    assert alone.around is not None
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[rows])])
    kept = None if alone.kept is None else alone.kept[alone.around]
    bare = Tokens(
        alone.ids[alone.around], offsets, np.zeros(len(rows), bool), kept, np.ones(offsets[-1], bool)
    )
    return bare, np.concatenate([kept_positions[row] for row in rows]), templates


def lengths_to(limit: int) -> Tokens:
    """Return one text of each length from 0 to `limit`, with a single repeated token."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.arange(limit + 1))])
    return Tokens(np.zeros(offsets[-1], np.int32), offsets, np.zeros(limit + 1, bool))
