"""Template denoising: vectors of templates without a text (Jiang et al. 2022, PromptBERT, section 4.3)."""

import numpy as np

from pipeline.text.tokens.tokens import Tokens


def without_texts(
    tokens: Tokens, positions: np.ndarray | None = None
) -> tuple[Tokens, np.ndarray, np.ndarray]:
    """(each template that `tokens` have, without text, once for each length of text; positions of its tokens;
    (n,) which of them belongs to each text).

    Every token keeps the position that it has behind the text: the template alone knows how long the text
    was.
    """
    assert tokens.around is not None
    own = tokens.positions if positions is None else positions
    counts = np.bincount(tokens.owners[tokens.around], minlength=len(tokens))
    ends = np.cumsum(counts)
    ids, places = tokens.ids[tokens.around], own[tokens.around]
    first: dict[bytes, int] = {}
    keys = [
        ids[end - count : end].tobytes() + places[end - count : end].tobytes()
        for count, end in zip(counts.tolist(), ends.tolist(), strict=True)
    ]
    which = np.array([first.setdefault(key, len(first)) for key in keys], np.int64)
    rows = np.unique(which, return_index=True)[1]
    alone = tokens.of_rows(rows)
    assert alone.around is not None
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[rows])])
    kept = None if alone.kept is None else alone.kept[alone.around]
    bare = Tokens(
        alone.ids[alone.around], offsets, np.zeros(len(rows), bool), kept, np.ones(offsets[-1], bool)
    )
    return bare, np.concatenate([places[ends[row] - counts[row] : ends[row]] for row in rows]), which


def lengths_to(limit: int) -> Tokens:
    """A text of each length from 0 to `limit`, of one token over and over."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.arange(limit + 1))])
    return Tokens(np.zeros(offsets[-1], np.int32), offsets, np.zeros(limit + 1, bool))
