"""Keep a span of a text (Gao et al. 2021, SimCSE, table 1: crop)."""

import numpy as np

from pipeline.augment import AUGMENTERS, Edit, WordAugmenter, Words
from pipeline.settings.augment import Proportion


@AUGMENTERS.register("crop")
class Crop(WordAugmenter):
    """A random span of the text's words. All spans of its length are equally likely."""

    share: Proportion = 0.1
    """proportion of the words that are cut off; the length of the span is rounded, at least one word"""

    def start(self) -> Edit:
        return self._crop

    def _crop(self, words: Words, rng: np.random.Generator) -> Words:
        length = max(1, round((1 - self.share) * len(words)))
        first = int(rng.random() * (len(words) - length + 1))
        return words[first : first + length]
