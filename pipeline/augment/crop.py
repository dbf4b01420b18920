"""Keep a span of a text (Gao et al. 2021, SimCSE, table 1: crop)."""

import numpy as np

from pipeline.augment import AUGMENTERS, Edit, WordAugmenter, Words
from pipeline.settings.augment import Share


@AUGMENTERS.register("crop")
class Crop(WordAugmenter):
    """A random span of 1 - `share` of the words, rounded, at least one; all such spans are equally likely."""

    share: Share = 0.1
    """proportion of the words that are cut off"""

    def start(self) -> Edit:
        return self._cropped

    def _cropped(self, words: Words, rng: np.random.Generator) -> Words:
        length = max(1, round((1 - self.share) * len(words)))
        first = int(rng.random() * (len(words) - length + 1))
        return words[first : first + length]
