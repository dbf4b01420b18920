"""Keep a span of a text (Gao et al. 2021, SimCSE, table 1: crop)."""

from collections.abc import Callable

import numpy as np

from pipeline.augment import AUGMENTERS, WordAugmenter, Words
from pipeline.settings.augment import Share


@AUGMENTERS.register("crop")
class Crop(WordAugmenter):
    """A span of 1 - `share` of the words, rounded, at least one; every span of that length is equally
    likely.
    """

    share: Share = 0.1
    """proportion of the words that are cut off"""

    def start(self) -> Callable[[Words, np.random.Generator], Words]:
        return self._cropped

    def _cropped(self, words: Words, rng: np.random.Generator) -> Words:
        length = max(1, round((1 - self.share) * len(words)))
        first = int(rng.random() * (len(words) - length + 1))
        return words[first : first + length]
