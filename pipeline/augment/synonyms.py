"""Sources of synonyms, and the base of the methods that use them.

A source is a user's thesaurus, or a file of word vectors whose nearest words count as synonyms.
"""

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, JsonValue, field_validator, model_validator

from pipeline.augment import WordAugmenter
from pipeline.augment.words import split_word
from pipeline.config import ShortSettings
from pipeline.errors import ConfigError, DataError, ModelError
from pipeline.models.folder.locate import absolute_path, locate
from pipeline.models.folder.vectorfile import read_vectors
from pipeline.models.folder.word_vectors import TABLE
from pipeline.store.files.cache import digest_of_file
from pipeline.store.files.open_store import store_of
from pipeline.store.rows.arrays import is_text
from pipeline.text.tokens.stop_words import STOP_WORDS

Lookup = Callable[[str], tuple[str, ...]]
"""a function from a case-folded word to its synonyms, without the word itself and without repeats"""

_CACHED_WORDS = 1 << 16  # the most frequent spellings make up nearly all of a corpus
# successive words of the file that are looked up together: published files are sorted by frequency, so the
# next words will probably be needed soon
_WORDS_AT_ONCE = 32
_ROWS_AT_ONCE = 8_192  # rows of the table in one matrix product: 10 MB with 300 dimensions
_REMEDY = "write Parquet with the columns word and synonym, or a line word<TAB>synonym,synonym for each word"

Entries = Iterator[tuple[str, str, list[str]]]
"""for each entry: its line or row for error messages, the word, and the word's synonyms"""


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


def read_thesaurus(file: Path, name: str) -> dict[str, tuple[str, ...]]:
    """Read the synonyms of each case-folded word, in the order of the file.

    Synonyms that equal the word or an earlier synonym, ignoring case, are left out.

    Args:
        file: a Parquet file or lines of text, as `SynonymSettings` describes them.
        name: name of the file in errors.

    Raises:
        DataError: the file has another format or no synonym; the error names the line or row.
    """
    with file.open("rb") as stream:
        is_parquet = stream.read(4) == b"PAR1"
    by_word: dict[str, dict[str, str]] = {}  # word -> case-folded synonym -> synonym
    for where, word, synonyms in _parquet_entries(file, name) if is_parquet else _text_entries(file, name):
        if not word or not all(synonyms):
            raise DataError(
                where, "a word and its synonyms", "an empty word or synonym", "fix or remove the entry"
            )
        distinct = by_word.setdefault(word.casefold(), {})
        for synonym in synonyms:
            if synonym.casefold() != word.casefold():
                distinct.setdefault(synonym.casefold(), synonym)
    thesaurus = {word: tuple(distinct.values()) for word, distinct in by_word.items() if distinct}
    if not thesaurus:
        raise DataError(name, "words and their synonyms", "no synonym", _REMEDY)
    return thesaurus


def _text_entries(file: Path, name: str) -> Entries:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            where = f"{name}: line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
            except UnicodeDecodeError:
                raise DataError(where, "a line of UTF-8 text", f"{line[:40]!a}", _REMEDY) from None
            if not text or text.isspace():
                continue
            word, tab, synonyms = text.partition("\t")
            if not tab:
                raise DataError(
                    where, "word<TAB>synonym,synonym", f"{text[:60]!a}, which has no tab", _REMEDY
                )
            yield where, _collapse_white_space(word), list(map(_collapse_white_space, synonyms.split(",")))


def _parquet_entries(file: Path, name: str) -> Entries:
    for number, cells in enumerate(zip(*_columns(file, name), strict=True), 1):
        where = f"{name}: row {number}"
        try:
            word, value = (cell.as_py() for cell in cells)
        except UnicodeDecodeError as error:
            raise DataError(where, "UTF-8", f"byte {error.object[error.start]:#04x}", _REMEDY) from None
        synonyms = value if isinstance(value, list) else [value]
        if word is None or None in synonyms:
            raise DataError(where, "a word and its synonyms", "a missing value", "fix or remove the row")
        yield where, _collapse_white_space(word), list(map(_collapse_white_space, synonyms))


def _columns(file: Path, name: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Read the columns word and synonym, which may also be called synonyms."""
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        synonym_name = next((each for each in ("synonym", "synonyms") if each in names), None)
        if "word" not in names or synonym_name is None:
            raise DataError(
                name, "the columns word and synonym", f"the columns {', '.join(names[:8])}", _REMEDY
            )
        columns = ["word", synonym_name]
        words, synonyms = table.read(columns=columns).select(columns).columns  # read keeps the file's order
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            name, "a readable Parquet file", " ".join(str(error).split())[:200], "write the file again"
        ) from None
    is_list = pa.types.is_list(synonyms.type) or pa.types.is_large_list(synonyms.type)
    if not is_text(words.type) or not is_text(synonyms.type.value_type if is_list else synonyms.type):
        raise DataError(
            name,
            "words as strings and synonyms as strings or lists of them",
            f"{words.type} and {synonyms.type}",
            _REMEDY,
        )
    return words, synonyms


def _collapse_white_space(word: object) -> str:
    """Remove white space at both ends, and replace white space between words by one blank."""
    return " ".join(str(word).split())


@dataclass
class NearestWords:
    """A function from a case-folded word to its nearest words by cosine, nearest first.

    Equally near words are in the order of the file. If words differ in case only, the first one is used.
    Words without a letter are never returned. Cosines are computed for fixed blocks of words, so that their
    bits do not depend on the words that were looked up before. They are computed when a word is first looked
    up, and cached.
    """

    words: list[str]
    vectors: np.ndarray
    """(n, d) float32, as in the file; may be memory-mapped"""
    count: int
    """largest number of nearest words"""
    least_cosine: float
    """least cosine of a nearest word"""
    _neighbours: dict[int, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._folded = [word.casefold() for word in self.words]
        self._index: dict[str, int] = {}
        for index, word in enumerate(self._folded):
            self._index.setdefault(word, index)
        norms = np.concatenate([np.linalg.norm(rows, axis=1) for rows in self._table_blocks()])
        self._inverse_norms = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
        candidates = [index for index in self._index.values() if any(map(str.isalpha, self.words[index]))]
        self._is_candidate = np.zeros(len(self.words), bool)
        self._is_candidate[candidates] = norms[candidates] > 0

    @classmethod
    def read(cls, path: str, count: int, least_cosine: float, vocabulary: int | None) -> "NearestWords":
        """Read the first `vocabulary` words of a file of vectors; None: all.

        The file is converted once on each machine; its vectors are memory-mapped.
        """
        folder = locate(path)
        words = (folder / "vocab.txt").read_bytes().decode().split("\n")
        file = folder / "model.safetensors"
        with file.open("rb") as stream:  # the file has one tensor, after the header
            header = int.from_bytes(stream.read(8), "little")
            shape = json.loads(stream.read(header))[TABLE]["shape"]
        vectors = np.memmap(file, "<f4", "r", 8 + header, tuple(shape))
        return cls(words[:vocabulary], vectors[:vocabulary], count, least_cosine)

    def __call__(self, word: str) -> tuple[str, ...]:
        index = self._index.get(word)
        if index is None:
            return ()
        if index not in self._neighbours:
            self._find_neighbours(index // _WORDS_AT_ONCE * _WORDS_AT_ONCE)
        return self._neighbours[index]

    def _find_neighbours(self, start: int) -> None:
        """Compute the nearest words of the block of words that begins at `start`."""
        block = slice(start, min(start + _WORDS_AT_ONCE, len(self.words)))
        units = self.vectors[block] * self._inverse_norms[block, None]
        products = np.concatenate([units @ rows.T for rows in self._table_blocks()], axis=1)
        cosines = products * self._inverse_norms
        cosines[:, ~self._is_candidate] = -np.inf
        for index, row in enumerate(cosines, start):
            row[self._index[self._folded[index]]] = -np.inf  # a word is not a synonym of itself
            has_vector = self._inverse_norms[index] > 0
            near = np.flatnonzero(row >= self.least_cosine) if has_vector else np.zeros(0, np.int64)
            nearest = near[np.argsort(-row[near], kind="stable")[: self.count]]
            self._neighbours[index] = tuple(self.words[each] for each in nearest.tolist())

    def _table_blocks(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self.words), _ROWS_AT_ONCE):
            yield self.vectors[start : start + _ROWS_AT_ONCE]
