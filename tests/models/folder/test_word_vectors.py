"""A file of word vectors is an encoder: a text's vector is the mean of its words' vectors. Its space does not
depend on the form of the file.
"""

import gzip
import json
import os
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import with_absolute_paths
from pipeline.models.folder.word_vectors import TABLE, build_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.open_store import open_store
from tests.models.folder.wordfiles import FORMS, minilm_table, write_words
from tests.models.folders import LONG, TEXTS, copy_listed_files, encoder_at
from tests.models.poolings import FORMULAS, OF_WORDS
from tests.models.poolings import TABLE as STATE_OF_TABLE

SENTENCES = (*TEXTS, "A MAN reads; the man's dog (3.5 years) doesn't.", LONG)


pytestmark = pytest.mark.usefixtures("cache_of_module")


@pytest.fixture(scope="module")
def glove(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(tmp_path_factory.mktemp("vectors") / "glove.txt", *minilm_table())


def tokens_of(words: list[str], text: str, tmp_path: Path) -> list[str]:
    """Return the tokens of a text that a vocabulary of these words knows."""
    file = write_words(tmp_path / "words.txt", tuple(words), np.ones((len(words), 2), np.float32))
    return [words[number] for number in encoder_at(file)._tokenizer([text]).ids]


@pytest.mark.parametrize("pooling", [*OF_WORDS, "mean+max"])
def test_poolings_of_word_vectors_match_numpy(glove, pooling):
    words, table = minilm_table()
    indices = {word: index for index, word in enumerate(words)}
    for text, vector in zip(SENTENCES, encoder_at(glove, pooling=pooling).encode(SENTENCES), strict=True):
        tokens = re.findall(r"n't|[^\W\d_]+(?=n't)|'s|\w+|[^\w\s]", text.lower())  # all forms in these texts
        rows = table[[indices[word] for word in tokens if word in indices]].astype(np.float64)
        states = dict.fromkeys((0, -1, STATE_OF_TABLE), rows)  # word vectors have one layer, the table itself
        expected = [
            FORMULAS[name](states, np.arange(len(rows))) if len(rows) else np.zeros(384)
            for name in pooling.split("+")
        ]
        np.testing.assert_allclose(vector, np.concatenate(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ending", ["txt", "bin.gz"])
@pytest.mark.parametrize("form", FORMS)
def test_every_file_format_gives_the_same_space_and_bits(glove, tmp_path, form, ending):
    words, table = minilm_table()
    expected = encoder_at(glove)
    found = encoder_at(write_words(tmp_path / f"words.{ending}", words, table, form))
    assert found.space_id == expected.space_id
    np.testing.assert_array_equal(found.encode(SENTENCES), expected.encode(SENTENCES))


def test_the_bits_of_a_text_do_not_depend_on_batch_or_buffer(glove):
    texts = [" ".join(np.random.default_rng(seed).choice(LONG.split(), 1 + seed % 70)) for seed in range(300)]
    encoder = encoder_at(glove)
    together, order = encoder.encode(texts), np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(encoder.encode([texts[row] for row in order]), together[order])
    np.testing.assert_array_equal(
        np.concatenate([encoder.encode([text], query=True) for text in texts[:20]]), together[:20]
    )
    large = load_encoder(EncoderSettings(path=str(glove)), EncodeSettings(max_tokens=8_192))
    np.testing.assert_array_equal(large.encode(texts), together)
    torch.set_num_threads(2)
    np.testing.assert_array_equal(encoder.encode(texts), together)


def test_a_text_without_a_known_word_has_the_zero_vector_and_is_counted(glove):
    [encoded] = encoder_at(glove, normalize=True).encode_stream(
        [["the cat", "qqzzq xxyyx", " ", "cat qqzzq"]]
    )
    assert encoded.bad.tolist() == [False, True, True, False]
    assert encoded.counts.lengths.tolist() == [2, 0, 0, 1]
    np.testing.assert_allclose(np.linalg.norm(encoded.vectors, axis=1), [1, 0, 0, 1], atol=1e-6)


def test_tokens_and_truncated_texts_are_counted_and_there_is_no_padding(glove):
    encoder = encoder_at(glove, max_length=8)
    [encoded] = encoder.encode_stream([["the cat", LONG]])
    assert encoded.counts.truncated.tolist() == [False, True]
    assert encoded.counts.lengths.tolist() == [2, 8]
    assert (encoder.counters.tokens, encoder.counters.padding) == (10, 0)
    np.testing.assert_array_equal(
        encoded.vectors[1], encoder.encode([" ".join(re.findall(r"\w+|[.,]", LONG)[:8])])[0]
    )
    assert encoder_at(glove).max_length == 1_024


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        # texts are lowercased if the vocabulary has no upper case
        (["the", "cat", "."], "The cat. THE", ["the", "cat", ".", "the"]),
        (["The", "the", "cat"], "The CAT, the cat", ["The", "the", "cat"]),
        (["do", "n't", "'s", "it", "don"], "Don't, it\u2019s DON 's", ["do", "n't", "it", "'s", "don", "'s"]),
        (["don't", "do", "n't"], "don't", ["don't"]),
        (["well", "known", "-"], "well-known", ["well", "-", "known"]),
        (
            ["well", "known", "-", "well-known"],
            "well-known, known-well",
            ["well-known", "known", "-", "well"],
        ),
        (["3.14", "3", "14", "."], "3.14 14.3", ["3.14", "14", ".", "3"]),
        (["new_york", "new", "york"], "New_York new york", ["new_york", "new", "york"]),
        (["(", ")", "!", "a", "€"], "(a!!) €", ["(", "a", "!", "!", ")", "€"]),
        (
            ["naïve", "नमस्ते", "می\u200cخواهم", "cafe\u0301"],
            "naïve नमस्ते می\u200cخواهم cafe\u0301",
            ["naïve", "नमस्ते", "می\u200cخواهم", "cafe\u0301"],
        ),
        (["a b", "a", "b"], "a b", ["a", "b"]),
    ],
)
def test_tokens_are_words_numbers_and_punctuation_of_the_vocabulary(tmp_path, words, text, expected):
    assert tokens_of(words, text, tmp_path) == expected


def test_a_few_words_in_upper_case_do_not_make_the_vocabulary_cased(tmp_path):
    words = ["UNK", "the", *(f"w{number}" for number in range(200))]
    assert tokens_of(words, "The THE UNK", tmp_path) == ["the", "the"]


@pytest.mark.parametrize("characters", [40, 700])
def test_a_truncated_text_has_the_first_tokens_of_the_whole(glove, characters):
    tokenizer = encoder_at(glove, max_length=16)._tokenizer
    text = ("x" * characters + " the cat's well-known dog doesn't run ") * 60
    whole = encoder_at(glove)._tokenizer([text[: 16 * (characters + 40)]]).ids[:16]
    assert tokenizer([text]).ids.tolist() == whole.tolist()


def test_the_first_vector_of_a_repeated_word_is_used_with_a_warning(tmp_path, capsys):
    write_words(tmp_path / "words.txt", ("a", "b", "a", "a"), np.arange(8, dtype=np.float32).reshape(4, 2))
    np.testing.assert_array_equal(encoder_at(tmp_path / "words.txt").encode(["a", "b"]), [[0, 1], [2, 3]])
    assert "2 lines repeat a word; its first vector is used" in capsys.readouterr().err


def test_the_file_is_read_once_per_machine_and_again_when_changed(tmp_path, cache, capsys):
    file = write_words(tmp_path / "words.txt", ("a", "b"), np.eye(2, dtype=np.float32))
    first = open_folder(EncoderSettings(path=str(file)))
    assert "once on this machine" in capsys.readouterr().err
    assert open_folder(EncoderSettings(path=f"file://{file}")) == first
    assert capsys.readouterr().err == ""
    write_words(file, ("a", "c"), np.eye(2, dtype=np.float32))
    assert open_folder(EncoderSettings(path=str(file))).space_id != first.space_id
    (first.path / "vocab.txt").write_text("a\nbroken")  # a changed copy is rebuilt
    os.utime(file, (1, 1))
    write_words(file, ("a", "b"), np.eye(2, dtype=np.float32))
    assert open_folder(EncoderSettings(path=str(file))).space_id == first.space_id


@pytest.mark.parametrize("form", ["glove", "binary"])
def test_conversion_uses_memory_for_the_vocabulary_and_one_batch(tmp_path, monkeypatch, form):
    monkeypatch.setattr("pipeline.models.folder.vectorfile._BATCH_BYTES", 5_000)
    monkeypatch.setattr("pipeline.models.folder.vectorfile._CHUNK_BYTES", 5_000)
    words, dim = tuple(f"word{number}" for number in range(1_000)), 300  # 1.2 MB of vectors
    file = write_words(tmp_path / "words.bin", words, np.ones((len(words), dim), np.float32), form)
    tracemalloc.start()
    build_folder(file, "words", tmp_path / "folder")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert load_file(tmp_path / "folder" / "model.safetensors")[TABLE].shape == (1_000, 300)
    assert peak < 0.6e6, f"{peak / 1e6:.1f} MB"


def test_a_remote_file_is_the_same_encoder(s3, tmp_path):
    words, table = minilm_table()
    local = write_words(tmp_path / "words.txt.gz", words, table, "word2vec")
    open_store(f"{s3}/vectors").write("words.txt.gz", local.read_bytes())
    remote, from_disk = encoder_at(f"{s3}/vectors/words.txt.gz"), encoder_at(local)
    assert remote.space_id == from_disk.space_id
    np.testing.assert_array_equal(remote.encode(SENTENCES), from_disk.encode(SENTENCES))
    with pytest.raises(ModelError, match=r"expected an encoder folder with config\.json"):
        encoder_at(f"{s3}/vectors/none.txt")


def test_a_copy_of_the_files_is_the_same_encoder(glove, tmp_path):
    original = encoder_at(glove, max_length=50)
    copy = encoder_at(copy_listed_files(original.folder, tmp_path / "copy"), max_length=50)
    assert (copy.space_id, copy.folder.files) == (original.space_id, original.folder.files)
    np.testing.assert_array_equal(copy.encode(SENTENCES), original.encode(SENTENCES))


def test_workers_get_absolute_paths(glove, monkeypatch):
    monkeypatch.chdir(glove.parent)
    assert with_absolute_paths(EncoderSettings(path=glove.name, frequencies=glove.name)) == EncoderSettings(
        path=str(glove), frequencies=str(glove)
    )
    assert with_absolute_paths(EncoderSettings()) == EncoderSettings()


@pytest.mark.parametrize("pooling", ["cls", "last", "first_last", "mean+last2", "cls_mlp"])
def test_a_pooling_that_needs_layers_is_refused(glove, pooling):
    with pytest.raises(ModelError, match=r"encoder\.pooling: expected one of max, mean, .* for word vectors"):
        open_folder(EncoderSettings(path=str(glove), pooling=pooling))


def test_an_invalid_file_leaves_nothing_in_the_cache(tmp_path, cache):
    file = tmp_path / "words.txt"
    file.write_bytes(gzip.compress(b"a 1 2 3\nb 1 2\n"))
    with pytest.raises(ModelError, match=re.escape(f"{file}: line 2: expected a word and 3 finite numbers")):
        open_folder(EncoderSettings(path=str(file)))
    assert not list((cache / "words").glob("*"))


def test_the_folder_describes_its_word_vectors(glove):
    folder = open_folder(EncoderSettings(path=str(glove)))
    config = json.loads((folder.transformer_path / "config.json").read_text())
    assert config == {
        "model_type": "manta-words",
        "hidden_size": 384,
        "vocab_size": len(minilm_table()[0]),
        "words": 1,
    }
    assert (folder.family, folder.dim, folder.normalize, folder.lower) == ("words", 384, False, True)
