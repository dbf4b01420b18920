"""The nearest words of a word equal those by all cosines, whatever was looked up before."""

import random
from pathlib import Path

import numpy as np
import pytest

from pipeline.augment import synonyms
from pipeline.augment.synonyms import NearestWords, SynonymSettings
from pipeline.errors import ModelError
from tests.models.folder.wordfiles import FORMS, write_words

WORDS = (
    "the",
    "dog",
    "Dog",
    "hound",
    "cat",
    ",",
    "1990",
    "CAT",
    "puppy",
    *(f"word{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(300)),
)


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))


def table(dim: int = 8) -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), dim)).astype(np.float32)
    vectors[40] = 0
    return vectors


def expected(word: str, count: int, least: float) -> list[str]:
    """Return the nearest words by the definition, in float64."""
    vectors = table().astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    first = next(index for index, other in enumerate(WORDS) if other.casefold() == word)
    cosines = {}
    for index, other in enumerate(WORDS):
        if (
            any(map(str.isalpha, other))
            and other.casefold() != word
            and other not in ("Dog", "CAT")
            and lengths[index]
        ):
            cosines[other] = vectors[index] @ vectors[first] / (lengths[index] * (lengths[first] or np.inf))
    near = sorted((other for other in cosines if cosines[other] >= least), key=lambda other: -cosines[other])
    return near[:count] if lengths[first] else []


@pytest.mark.parametrize(("count", "least"), [(5, 0.0), (400, -1.0), (10, 0.7)])
def test_nearest_words_equal_numpy(count, least):
    near = NearestWords(list(WORDS), table(), count, least)
    for word in ("dog", "cat", "1990", ",", WORDS[40], *WORDS[50:70]):
        assert list(near(word)) == expected(word, count, least)


def test_unknown_words_and_words_that_are_not_case_folded_have_no_neighbours():
    near = NearestWords(list(WORDS), table(), 5, 0.0)
    assert len(near("dog")) == 5
    assert near("unicorn") == ()
    assert near("Dog") == ()


def test_result_does_not_depend_on_the_order_of_lookups(monkeypatch):
    monkeypatch.setattr(synonyms, "_ROWS_AT_ONCE", 64)
    words = [word.casefold() for word in WORDS]
    one, other = (NearestWords(list(WORDS), table(), 5, 0.3) for _ in range(2))
    answers = {word: one(word) for word in words}
    random.Random(0).shuffle(words)
    assert {word: other(word) for word in words} == answers


@pytest.mark.parametrize("form", FORMS)
def test_file_of_every_format_is_read_up_to_the_vocabulary(tmp_path, form):
    file = write_words(tmp_path / "vectors.gz", WORDS, table(), form)
    whole, first = (NearestWords.read(str(file), 5, 0.0, vocabulary) for vocabulary in (None, 100))
    assert list(whole("dog")) == expected("dog", 5, 0.0)
    assert WORDS[150] in whole._index
    assert first(WORDS[150]) == ()
    assert set(first("dog")) <= set(WORDS[:100])
    assert isinstance(whole.vectors, np.memmap)


@pytest.mark.parametrize("content", [b"", b"only words\n"])
def test_file_without_vectors_is_refused(tmp_path, content):
    file = tmp_path / "vectors.txt"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"vectors\.txt"):
        SynonymSettings(vectors=str(file)).check()
