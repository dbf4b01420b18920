"""Sources of synonyms, and the base of the methods that use them.

A source is a user's thesaurus, or a file of word vectors whose nearest words count as synonyms.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import Field, JsonValue, field_validator, model_validator

from pipeline.augment import WordAugmenter
from pipeline.augment.nearest import NearestWords
from pipeline.augment.thesaurus import read_thesaurus
from pipeline.augment.words import split_word
from pipeline.config import ShortSettings
from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.locate import absolute_path
from pipeline.models.folder.vectorfile import read_vectors
from pipeline.store.files.cache import digest_of_file
from pipeline.store.files.open_store import store_of
from pipeline.text.tokens.stop_words import STOP_WORDS

Lookup = Callable[[str], tuple[str, ...]]
"""a function from a case-folded word to its synonyms, without the word itself and without repeats"""

_CACHED_WORDS = 1 << 16  # the most frequent spellings make up nearly all of a corpus


class SynonymSettings(ShortSettings):
    """A source of synonyms: a thesaurus or word vectors. A plain string is the path of a thesaurus."""

    thesaurus: str | None = None
    """path or URI of a file: Parquet with the columns word and synonym (a string or a list of strings), or
    UTF-8 text with a line word<TAB>synonym,synonym for each word
    """
    vectors: str | None = None
    """path or URI of a file of word vectors in the format of GloVe or word2vec, plain or .gz; synonyms are
    the nearest words by cosine
    """
    nearest: Annotated[int, Field(ge=1)] = 10
    """largest number of nearest words of `vectors` that count as synonyms"""
    least_cosine: Annotated[float, Field(ge=-1, le=1)] = 0.6
    """least cosine of a word of `vectors` that counts as a synonym"""
    vocabulary: Annotated[int, Field(ge=2)] | None = 50_000
    """number of words that are replaced or used as synonyms, from the beginning of `vectors`, where published
    files have the most frequent words; null: all words, which takes proportionally longer
    """

    @field_validator("thesaurus", "vectors")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        return value if value is None else absolute_path(value)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.thesaurus is None) == (self.vectors is None):
            raise ValueError("either a thesaurus or vectors, and not both")
        return self

    @property
    def path(self) -> str:
        """Path or URI of the file."""
        return str(self.thesaurus if self.vectors is None else self.vectors)

    def file(self) -> Path:
        """Return the local copy of the file. ConfigError if the file is missing."""
        try:
            store, name = store_of(self.path)
            return store.local(name)
        except FileNotFoundError:
            raise ConfigError(
                "synonyms",
                "a thesaurus" if self.vectors is None else "a file of word vectors",
                f"no file {self.path}",
                "check the path; a relative path starts at the working directory of the command",
            ) from None

    def check(self) -> None:
        """Check that the file can be read.

        Raises:
            ConfigError: there is no such file.
            DataError, ModelError: it is not a thesaurus, or has no word vectors.
        """
        if self.vectors is None:
            read_thesaurus(self.file(), self.path)
        elif next(read_vectors(self.file(), self.path), None) is None:
            raise ModelError(self.path, "word vectors", "an empty file", "give another file")

    def identity(self) -> JsonValue:
        """Return the options that decide the synonyms, and the digest of the file."""
        content: JsonValue = {"sha256": digest_of_file(self.file())}
        if self.vectors is None:
            return {"thesaurus": content}
        options = self.model_dump(mode="json", include={"nearest", "least_cosine", "vocabulary"})
        return {"vectors": content, **options}

    def start(self) -> Lookup:
        """Load the source, on the worker, and return its lookup function."""
        if self.vectors is None:
            synonyms = read_thesaurus(self.file(), self.path)
            return lambda word: synonyms.get(word, ())
        self.file()  # raises for a missing file, which would otherwise be looked up on the hub
        return NearestWords.read(self.path, self.nearest, self.least_cosine, self.vocabulary)


@dataclass(frozen=True)
class ReplaceableWord:
    """A word of a text with its synonyms."""

    before: str
    """punctuation before the word"""
    word: str
    after: str
    """punctuation after the word, with a possessive 's"""
    synonyms: tuple[str, ...]
    """at least one"""

    def draw(self, rng: np.random.Generator) -> str:
        """Draw one of the synonyms, all equally likely."""
        return self.synonyms[int(rng.random() * len(self.synonyms))]


FindSynonyms = Callable[[str], ReplaceableWord | None]
"""a function from a word of a text to its synonyms; None for a stop word and for a word without synonyms"""


class SynonymAugmenter(WordAugmenter):
    """Edits words by means of synonyms.

    Words are looked up without their case, the punctuation around them and a possessive 's.
    """

    synonyms: SynonymSettings | None = None
    """the source: {thesaurus: FILE} or {vectors: FILE}"""
    stop_words: tuple[str, ...] | None = None
    """words that are never replaced, whatever the source says; null: some 200 English words"""

    @property
    def needs_synonyms(self) -> bool:
        """True if these options require a source of synonyms."""
        return True

    @model_validator(mode="after")
    def _there_is_a_source(self) -> Self:
        if self.needs_synonyms and self.synonyms is None:
            raise ValueError("synonyms: a source, such as {thesaurus: synonyms.tsv} or {vectors: glove.txt}")
        return self

    def check(self) -> None:
        if self.synonyms is not None:
            self.synonyms.check()

    def identity(self) -> JsonValue:
        return self.model_dump(mode="json") | {"synonyms": self.synonyms and self.synonyms.identity()}

    def load_synonyms(self) -> FindSynonyms:
        """Load the source of synonyms and the stop words, and return the function that looks words up."""
        lookup: Lookup = self.synonyms.start() if self.synonyms and self.needs_synonyms else lambda word: ()
        stop_words = STOP_WORDS if self.stop_words is None else {word.casefold() for word in self.stop_words}

        @functools.lru_cache(maxsize=_CACHED_WORDS)
        def find_synonyms(word: str) -> ReplaceableWord | None:
            before, core, after = split_word(word)
            folded = core.casefold().replace("’", "'")
            synonyms = () if not core or folded in stop_words else lookup(folded)
            return ReplaceableWord(before, core, after, synonyms) if synonyms else None

        return find_synonyms
