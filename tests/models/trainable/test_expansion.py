"""Vocabulary expansion: further words get vectors by the least-squares map, and nothing else changes."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pipeline.errors import ConfigError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import TABLE, read_words
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.expansion import check_expansion, expand_vocabulary, fit_word_map
from pipeline.models.trainable.saving import save_joined
from pipeline.settings import EncoderSettings
from tests.models.folders import encoder_at
from tests.objectives.three_words import new_recurrent

WORDS = ("zero", "one", "two", "three", "Paris", "four", "<s>", "five")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """Files of word vectors are converted in a cache of the test's own."""


def write_vectors(file: Path, words: tuple[str, ...] = WORDS, seed: int = 0) -> EncoderFolder:
    """Write vectors of 2 dimensions.

    With WORDS, the encoder shares 3 words, so that the map has fewer unknowns than equations.
    """
    vectors = np.random.default_rng(seed).normal(size=(len(words), 2)).astype(np.float32)
    lines = (f"{word} {row[0]} {row[1]}" for word, row in zip(words, vectors.tolist(), strict=True))
    file.write_text("\n".join(lines))
    return open_folder(EncoderSettings(path=str(file)))


def table_of(folder: EncoderFolder) -> dict[str, np.ndarray]:
    """Load the word vectors of a folder by word."""
    words = read_words(folder.transformer_path)
    return dict(zip(words, load_file(folder.file(folder.weights[0]))[TABLE], strict=True))


def test_the_map_is_that_of_the_normal_equations():
    rng = np.random.default_rng(0)
    vectors, targets = rng.normal(size=(40, 3)), rng.normal(size=(40, 5))
    expected = np.linalg.solve(vectors.T @ vectors, vectors.T @ targets)
    np.testing.assert_allclose(fit_word_map(vectors, targets), expected, atol=1e-12)
    exact = rng.normal(size=(3, 5))
    np.testing.assert_allclose(fit_word_map(vectors, vectors @ exact), exact, atol=1e-12)


def test_further_words_get_mapped_vectors_and_known_words_keep_theirs(tmp_path: Path):
    encoder, vectors = new_recurrent(tmp_path / "gru"), write_vectors(tmp_path / "vectors.txt")
    before, texts = table_of(encoder), ["zero two", "one", "unknown"]
    encoded = encoder_at(encoder.path).encode([*texts, "three"])
    expanded = expand_vocabulary(encoder, vectors, None)
    after, in_file = table_of(expanded), table_of(vectors)
    assert list(after) == [*before, "three", "four", "five"]  # "Paris" cannot occur in a lowercased text
    for word, vector in before.items():
        np.testing.assert_array_equal(after[word], vector)
    shared = ("zero", "one", "two")
    word_map = np.linalg.lstsq(
        np.stack([in_file[word] for word in shared]).astype(np.float64),
        np.stack([before[word] for word in shared]).astype(np.float64),
    )[0]
    for word in ("three", "four", "five"):
        np.testing.assert_allclose(after[word], in_file[word] @ word_map, atol=1e-6)
    assert expanded.config["vocab_size"] == len(after)
    assert expanded.space_id != encoder.space_id
    loaded = encoder_at(expanded.path)
    np.testing.assert_array_equal(loaded.encode(texts), encoded[:3])
    assert np.abs(loaded.encode(["three"]) - encoded[3]).max() > 1e-3, "three was an unknown word before"


def test_only_the_first_words_of_the_file_are_read_up_to_the_limit(tmp_path: Path):
    encoder, vectors = new_recurrent(tmp_path / "gru"), write_vectors(tmp_path / "vectors.txt")
    expanded = expand_vocabulary(encoder, vectors, 4)
    assert read_words(expanded.path) == ["<unk>", "<s>", "</s>", "zero", "one", "two", "three"]


def test_concatenated_encoders_are_expanded_one_by_one(tmp_path: Path):
    folders = [new_recurrent(tmp_path / "uni"), new_recurrent(tmp_path / "bi", 2)]
    joined = save_joined([load_trainable(folder) for folder in folders], tmp_path / "joined")
    vectors = write_vectors(tmp_path / "vectors.txt")
    permissions = permissions_in(joined.parts[0].path)
    expanded = expand_vocabulary(joined, vectors, None)
    assert permissions_in(expanded.parts[0].path) == permissions
    alone = [expand_vocabulary(folder, vectors, None) for folder in folders]
    texts = ["three zero", "unknown"]
    expected = np.hstack([encoder_at(folder.path).encode(texts) for folder in alone])
    np.testing.assert_array_equal(encoder_at(expanded.path).encode(texts), expected)


def permissions_in(folder: Path) -> dict[str, int]:
    """Return the permissions of the files in a folder by name."""
    return {file.name: file.stat().st_mode for file in folder.glob("*.*")}


def test_encoders_and_files_that_do_not_fit_are_refused_before_the_training(tmp_path: Path):
    encoder, vectors = new_recurrent(tmp_path / "gru"), write_vectors(tmp_path / "vectors.txt")
    check_expansion(encoder, vectors, None)
    with pytest.raises(ConfigError, match=r"learned word vectors, found manta-words"):
        check_expansion(vectors, vectors, None)
    with pytest.raises(ConfigError, match=r"a file of word vectors, found the manta-recurrent encoder"):
        check_expansion(encoder, encoder, None)
    foreign = write_vectors(tmp_path / "foreign.txt", ("zwei", "<s>", "drei"))
    with pytest.raises(ConfigError, match=r"on which the map is fitted, found none of them"):
        check_expansion(encoder, foreign, None)
