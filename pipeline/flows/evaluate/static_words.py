"""Store static word vectors that are made of the states of a word in many sentences (Ethayarajh 2019)."""

from collections.abc import Sequence

import numpy as np

from pipeline.models.folder.vectorfile import word2vec_text
from pipeline.stats.contextuality import LayerStates, static_vector
from pipeline.stats.occurrences import Occurrences
from pipeline.store.base import Store
from pipeline.store.once import store_by_content
from pipeline.store.stored import FileRef


def store_static_words(
    store: Store, layers: Sequence[LayerStates], chosen: Occurrences, words: dict[int, str]
) -> tuple[FileRef, ...]:
    """Store the static vectors of words, one file in word2vec's text form for each layer.

    Args:
        store: store of the evaluation.
        layers: accumulated states of the layers.
        chosen: the occurrences whose states the layers hold.
        words: words to store, by their number in `chosen.words`; at least one.
    """
    return tuple(
        store_by_content(
            store,
            word2vec_text(
                list(words.values()),
                np.stack([static_vector(layer.occurrences[chosen.words[word]]) for word in words]),
            ),
            f"geometry/words/layer-{number}",
            ".txt",
            rows=len(words),
        )
        for number, layer in enumerate(layers)
    )


def storable_words(names: Sequence[str], is_whole: np.ndarray) -> dict[int, str]:
    """Return the whole words among tokens (m,), by number: printable, and each spelling once.

    Args:
        names: spellings of the tokens.
        is_whole: (m,) bool; pieces that continue a word are left out, because no text has them as a word.
    """
    numbers = {
        name: number
        for number, name in enumerate(names)
        if is_whole[number] and name.isprintable() and name and "\ufffd" not in name and " " not in name
    }
    return {number: name for name, number in numbers.items()}
