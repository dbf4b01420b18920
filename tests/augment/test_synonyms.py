"""Synonyms come from the one file in the settings, local or remote, and are identified by its content."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest

from pipeline.augment.synonyms import SynonymSettings
from pipeline.config import validated
from pipeline.errors import ConfigError, DataError, ModelError
from pipeline.store.files.open_store import open_store
from pipeline.text.tokens.stop_words import STOP_WORDS
from tests.augment.edits import method, write_thesaurus
from tests.models.folder.wordfiles import write_words

VECTORS = np.array([[1, 0], [0.99, 0.1], [0.9, 0.4], [0, 1]], np.float32)
WORDS = ("dog", "hound", "Puppy", "cloud")


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))


def source(**options: object) -> SynonymSettings:
    return validated(SynonymSettings, options, "synonyms")


def test_plain_string_is_a_thesaurus(tmp_path):
    file = str(write_thesaurus(tmp_path))
    assert method("synonym", synonyms=file) == method("synonym", synonyms={"thesaurus": file})


@pytest.mark.parametrize("options", [{}, {"thesaurus": "a", "vectors": "b"}])
def test_exactly_one_source_is_required(options):
    with pytest.raises(ConfigError, match="either a thesaurus or vectors"):
        source(**options)


@pytest.mark.parametrize("name", ["synonym", "insert", "eda"])
def test_methods_that_need_a_source_are_refused_without(name):
    with pytest.raises(ConfigError, match="synonyms: a source"):
        method(name)


@pytest.mark.parametrize("kind", ["thesaurus", "vectors"])
def test_file_may_be_a_uri(tmp_path, s3, kind):
    local = (
        write_thesaurus(tmp_path)
        if kind == "thesaurus"
        else write_words(tmp_path / "vectors.txt", WORDS, VECTORS)
    )
    open_store(f"{s3}/{kind}").write(local.name, local.read_bytes())
    sources = [source(**{kind: uri}) for uri in (str(local), local.as_uri(), f"{s3}/{kind}/{local.name}")]
    for each in sources:
        each.check()
    assert len({str(each.identity()) for each in sources}) == 1
    assert {pickle.loads(pickle.dumps(each)).start()("dog") for each in sources} == {
        ("hound", "puppy") if kind == "thesaurus" else ("hound", "Puppy")
    }


@pytest.mark.parametrize("kind", ["thesaurus", "vectors"])
@pytest.mark.parametrize("path", ["nowhere.tsv", "owner/name", "folder/nowhere.tsv"])
def test_missing_file_is_named_in_the_error(tmp_path, monkeypatch, kind, path):
    monkeypatch.chdir(tmp_path)
    for ask in (source(**{kind: path}).check, source(**{kind: path}).identity, source(**{kind: path}).start):
        with pytest.raises(ConfigError, match=f"no file {path}"):
            ask()


def test_relative_path_works_from_another_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_thesaurus(tmp_path)
    edit = method("synonym", synonyms="thesaurus.tsv")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert pickle.loads(pickle.dumps(edit)).load_synonyms()("dog") is not None


def test_check_finds_unusable_files(tmp_path):
    with pytest.raises(DataError, match="line 1"):
        method("eda", synonyms=str(write_thesaurus(tmp_path, {"dog": ""}))).check()
    empty = tmp_path / "vectors.txt"
    empty.touch()
    with pytest.raises(ModelError, match=r"vectors\.txt"):
        method("insert", synonyms={"vectors": str(empty)}).check()


def test_identity_depends_on_content_and_deciding_options(tmp_path):
    file = write_words(tmp_path / "vectors.txt", WORDS, VECTORS)
    first = source(vectors=str(file)).identity()
    assert source(vectors=str(file), nearest=3).identity() != first
    moved = file.rename(tmp_path / "moved.txt")
    assert source(vectors=str(moved)).identity() == first
    assert (
        source(thesaurus=str(write_thesaurus(tmp_path)), nearest=3).identity()
        == source(thesaurus=str(tmp_path / "thesaurus.tsv")).identity()
    )
    moved.write_bytes(gzip.compress(file.name.encode() + moved.read_bytes()))
    assert source(vectors=str(moved)).identity() != first


def test_synonyms_have_at_least_the_least_cosine(tmp_path):
    file = str(write_words(tmp_path / "vectors.txt", WORDS, VECTORS))
    assert source(vectors=file).start()("dog") == ("hound", "Puppy")
    assert source(vectors=file, least_cosine=0.95).start()("dog") == ("hound",)
    assert source(vectors=file, nearest=1, least_cosine=-1).start()("dog") == ("hound",)
    assert source(vectors=file, vocabulary=2).start()("cloud") == ()


def test_stop_words_are_not_replaced(tmp_path):
    file = str(write_thesaurus(tmp_path, {"the": "a", "dog": "hound", "it": "that"}))
    look_up = method("synonym", synonyms=file).load_synonyms()
    assert [look_up(word) for word in ("The", "the,", "it's", "cat", "...", "")] == [None] * 6
    assert look_up("(DOGS)") is None
    found = look_up("(Dog’s).")
    assert found is not None
    assert (found.before, found.word, found.after, found.synonyms) == ("(", "Dog", "’s).", ("hound",))
    other = method("synonym", synonyms=file, stop_words=["Dog"]).load_synonyms()
    assert other("dog") is None
    assert other("the") is not None
    assert "the" in STOP_WORDS
