"""Where synonyms come from, and the methods that use them: a thesaurus of the user's, or a file of word vectors, whose near words stand for synonyms."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, JsonValue, field_validator, model_validator

from pipeline.augment import WordAugmenter
from pipeline.augment.nearest import Nearest, check_vectors
from pipeline.augment.thesaurus import read_thesaurus
from pipeline.augment.words import in_full, parted
from pipeline.config import Settings
from pipeline.errors import ConfigError
from pipeline.store.cache import digest_of_file
from pipeline.store.store import store_of
from pipeline.text.tokens.stop_words import STOP_WORDS

Lookup = Callable[[str], tuple[str, ...]]
_DISTINCT = (
    1 << 16
)  # spellings whose synonyms a worker remembers: the commonest make up nearly all of a corpus


class SynonymSettings(Settings):
    """A source of synonyms: a thesaurus or word vectors. A plain string is a thesaurus."""

    thesaurus: str | None = None
    """path or URI of a file: Parquet with the columns word and synonym (a string, or a list of them), or UTF-8 text with a line word<TAB>synonym,synonym for each word"""
    vectors: str | None = None
    """path or URI of a file of word vectors in GloVe's or word2vec's form, plain or .gz: synonyms are the nearest words by cosine"""
    nearest: Annotated[int, Field(ge=1)] = 10
    """of the words of `vectors`, at most"""
    least_cosine: Annotated[float, Field(ge=-1, le=1)] = 0.6
    """of a word that counts as a synonym"""
    vocabulary: Annotated[int, Field(ge=2)] | None = 50_000
    """so many words from the beginning of `vectors`, where published files have the commonest, may be replaced and replace; null: all, which costs time in proportion"""

    @model_validator(mode="before")
    @classmethod
    def _string_is_a_thesaurus(cls, value: Any) -> Any:
        return {"thesaurus": value} if isinstance(value, str) else value

    @field_validator("thesaurus", "vectors")
    @classmethod
    def _anywhere(cls, value: str | None) -> str | None:
        return value if value is None else in_full(value)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.thesaurus is None) == (self.vectors is None):
            raise ValueError(
                "either a thesaurus or vectors" + ("" if self.thesaurus is None else ", not both")
            )
        return self

    @property
    def path(self) -> str:
        """Of the file that is named."""
        return str(self.thesaurus if self.vectors is None else self.vectors)

    def file(self) -> Path:
        """Its copy on this machine. ConfigError where there is none."""
        try:
            store, name = store_of(self.path)
            return store.local(name)
        except FileNotFoundError:
            what = "a thesaurus" if self.vectors is None else "a file of word vectors"
            raise ConfigError(
                "synonyms",
                what,
                f"no file {self.path}",
                "check the path; a relative one begins where the command is started",
            ) from None

    def check(self) -> None:
        """ConfigError for a file that is not there, DataError or ModelError for one that is no thesaurus or has no word vectors."""
        if self.vectors is None:
            read_thesaurus(self.file(), self.path)
        else:
            check_vectors(self.file(), self.path)

    def identity(self) -> JsonValue:
        """The options that matter and the content of the file."""
        content: JsonValue = {"sha256": digest_of_file(self.file())}
        if self.vectors is None:
            return {"thesaurus": content}
        return {
            "vectors": content,
            "nearest": self.nearest,
            "least_cosine": self.least_cosine,
            "vocabulary": self.vocabulary,
        }

    def start(self) -> Lookup:
        """Case-folded word -> its synonyms, other words than itself, none twice; () where there are none."""
        if self.vectors is None:
            known = read_thesaurus(self.file(), self.path)
            return lambda word: known.get(word, ())
        self.file()  # a name that is no file would be looked for on the hub
        return Nearest.of(self.path, self.nearest, self.least_cosine, self.vocabulary)


@dataclass(frozen=True)
class Synonyms:
    """A word of a text that can be replaced, without the signs around it, which stand before and behind it."""

    before: str
    word: str
    behind: str
    others: tuple[str, ...]

    def drawn(self, rng: np.random.Generator) -> str:
        """One of the others, all equally likely."""
        return self.others[int(rng.random() * len(self.others))]


Meaning = Callable[[str], Synonyms | None]


class ByMeaning(WordAugmenter):
    """What edits words by way of synonyms. Words are compared without regard to case and to signs around them; of a possessive what stands before the 's is the word."""

    synonyms: SynonymSettings | None = None
    """where they come from: {thesaurus: FILE} or {vectors: FILE}"""
    stop_words: tuple[str, ...] | None = None
    """words that have no synonyms whatever the source says; null: some 200 English ones"""

    @property
    def needs_synonyms(self) -> bool:
        """Whether it can do nothing without."""
        return True

    @model_validator(mode="after")
    def _there_is_a_source(self) -> Self:
        if self.needs_synonyms and self.synonyms is None:
            raise ValueError(
                "synonyms: a source of them, such as {thesaurus: synonyms.tsv} or {vectors: glove.txt}"
            )
        return self

    def check(self) -> None:
        if self.synonyms is not None:
            self.synonyms.check()

    def identity(self) -> JsonValue:
        return {
            **self.model_dump(mode="json"),
            "synonyms": None if self.synonyms is None else self.synonyms.identity(),
        }

    def meaning(self) -> Meaning:
        """Word as it stands in a text -> what can replace it; None for a stop word and one without synonyms. The source is loaded here."""
        lookup: Lookup = (
            self.synonyms.start() if self.synonyms is not None and self.needs_synonyms else lambda word: ()
        )
        stop_words = (
            STOP_WORDS if self.stop_words is None else frozenset(word.casefold() for word in self.stop_words)
        )

        @functools.lru_cache(maxsize=_DISTINCT)
        def meaning(word: str) -> Synonyms | None:
            before, core, behind = parted(word)
            folded = core.casefold().replace("’", "'")
            others = () if not core or folded in stop_words else lookup(folded)
            return Synonyms(before, core, behind, others) if others else None

        return meaning
