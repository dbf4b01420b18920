"""TF-IDF: sparse vectors of word counts, a baseline for evaluations that needs no training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.models.folder.word_vectors import words_of
from pipeline.text.normalize import NORMALIZER_VERSION

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import CountVectorizer

MAX_WORDS = 200_000  # words of the vocabulary, as in Hill et al. 2016


@dataclass(frozen=True, eq=False)
class TfIdf:
    """A vocabulary of the commonest words of a corpus, and how rare each is."""

    counter: "CountVectorizer"
    """scikit-learn's counter of the words of texts, lowercased"""
    idf: np.ndarray
    """(words,) float64, ln(N / df): N texts in the corpus, df of them with the word"""

    @classmethod
    def of_texts(cls, texts: Iterable[str], where: str, most: int = MAX_WORDS) -> "TfIdf":
        """Count the words of a corpus.

        Args:
            texts: texts of the corpus.
            where: their source, for errors.
            most: largest number of words, the commonest ones.

        Raises:
            DataError: there are no words.
        """
        from sklearn.feature_extraction.text import CountVectorizer  # takes a second to import

        counter = CountVectorizer(analyzer=_words, max_features=most)
        try:
            counts = counter.fit_transform(texts)
        except ValueError:  # an empty vocabulary
            raise DataError(where, "texts with words", "none", "give other texts to count words of") from None
        documents = np.bincount(counts.indices, minlength=counts.shape[1])
        return cls(counter, np.log(counts.shape[0] / documents))

    @property
    def space_id(self) -> str:
        """Digest of the words and their idf: vectors are comparable if these ids are equal."""
        words = self.counter.get_feature_names_out().tolist()
        return digest_of({"tfidf": words, "idf": self.idf.tolist(), "normalizer": NORMALIZER_VERSION})

    def __call__(self, texts: Sequence[str]) -> Any:
        """Return (n, words) vectors in scipy's CSR format, float64: counts times idf.

        The vector of a text without a known word is zero.
        """
        return self.counter.transform(texts).multiply(self.idf).tocsr()


def _words(text: str) -> list[str]:
    return list(words_of(text))
