"""Averages weight words by a / (a + p) (SIF), with word counts that are part of the encoder's files."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.models.classic.word_table import sif_weights
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.frequencies import read_frequencies
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folder.wordfiles import minilm_table, write_counts, write_words
from tests.models.folders import LONG, TEXTS, copy_listed_files, encoder_at

COUNTS = {"the": 50, "cat": 30, "sat": 15, "dog": 5}
TABLE = {"the": [1, 1], "cat": [2, 0], "sat": [0, 1], "dog": [1, -1]}
SENTENCES = ("the cat", "the dog sat", "cat sat")


pytestmark = pytest.mark.usefixtures("cache_of_module")


@pytest.fixture
def small(tmp_path) -> Path:
    return write_words(tmp_path / "words.txt", tuple(TABLE), np.array(list(TABLE.values()), np.float32))


def test_weighted_averages_match_a_hand_computation(small, tmp_path):
    counts = write_counts(tmp_path / "counts.parquet", COUNTS)
    encoder = encoder_at(small, sif=1e-3, frequencies=str(counts))
    weights = sif_weights(encoder._tokenizer, read_frequencies(counts), 1e-3, lower=True)
    np.testing.assert_allclose(weights, [0.001996, 0.003322, 0.006623, 0.019608], atol=1e-6)
    np.testing.assert_allclose(
        encoder.encode(SENTENCES),
        [[0.004320, 0.000998], [0.007201, -0.003663], [0.003322, 0.003311]],
        atol=1e-6,
    )


def test_weighted_averages_match_numpy(tmp_path):
    words, table = minilm_table()
    texts = [text for text in (*TEXTS, LONG) if text]
    # words that end with punctuation are not in the table, so they are counted for the total alone
    counted = Counter(word for text in texts for word in text.lower().split())
    counts = write_counts(tmp_path / "counts.parquet", counted)
    encoder = encoder_at(write_words(tmp_path / "words.txt", words, table), sif=0.01, frequencies=str(counts))
    total = sum(counted.values())
    for text, vector in zip(texts, encoder.encode(texts), strict=True):
        ids = encoder._tokenizer([text]).ids
        expected = [table[number] * 0.01 / (0.01 + counted.get(words[number], 0) / total) for number in ids]
        np.testing.assert_allclose(vector, np.mean(expected, axis=0), atol=1e-6)


def test_uncounted_words_weigh_one_and_counts_of_upper_and_lower_case_add_up(small, tmp_path):
    counts = write_counts(tmp_path / "counts.parquet", {"The": 30, "the": 20, "other": 50, "dog": 0})
    encoder = encoder_at(small, sif=0.5, frequencies=str(counts))
    np.testing.assert_allclose(encoder.encode(["the", "dog cat"]), [[0.5, 0.5], [1.5, -0.5]], atol=1e-6)
    cased = write_words(tmp_path / "cased.txt", ("the", "The"), np.eye(2, dtype=np.float32))
    np.testing.assert_allclose(
        encoder_at(cased, sif=0.5, frequencies=str(counts)).encode(["The", "the"]),
        [[0, 0.5 / 0.8], [0.5 / 0.7, 0]],
        atol=1e-6,
    )


def test_a_copy_has_counts_of_its_own_and_the_same_space(small, tmp_path):
    counts = write_counts(tmp_path / "counts.parquet", COUNTS)
    settings = EncoderSettings(path=str(small), sif=1e-3, frequencies=str(counts))
    folder = open_folder(settings)
    assert "frequencies.parquet" in folder.files
    copy = copy_listed_files(folder, tmp_path / "copy")
    expected = load_encoder(settings, EncodeSettings()).encode(SENTENCES)
    for change_the_file in (lambda: None, lambda: write_counts(counts, {"the": 1}), counts.unlink):
        change_the_file()
        copied = encoder_at(copy, sif=1e-3, frequencies=str(counts))
        assert (copied.space_id, copied.folder.files) == (folder.space_id, folder.files)
        np.testing.assert_array_equal(copied.encode(SENTENCES), expected)
    assert encoder_at(copy, sif=1e-3).space_id == folder.space_id
    assert encoder_at(copy).space_id == open_folder(EncoderSettings(path=str(small))).space_id


def test_the_space_depends_on_weight_and_used_counts(small, tmp_path):
    first, second = (
        str(write_counts(tmp_path / f"{number}.parquet", COUNTS | {"dog": number})) for number in (5, 6)
    )
    different: list[dict[str, object]] = [
        {},
        {"sif": 1e-3, "frequencies": first},
        {"sif": 1e-3, "frequencies": second},
        {"sif": 1e-4, "frequencies": first},
    ]
    assert len({encoder_at(small, **settings).space_id for settings in different}) == 4
    assert encoder_at(small, frequencies=str(tmp_path / "none")).space_id == encoder_at(small).space_id


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sif": 1e-3},
            (
                r"encoder\.sif: expected a file of word counts in encoder\.frequencies, found null; name "
                r"a Parquet file"
            ),
        ),
        (
            {"sif": 1e-3, "frequencies": "/none.parquet"},
            r"encoder\.frequencies: expected a Parquet file .* found no such file /none\.parquet",
        ),
        (
            {"sif": 1e-3, "frequencies": "/none.parquet", "pooling": "max"},
            r"encoder\.sif: expected one of the poolings mean, sqrt_len, sum, static, table, found 'max'",
        ),
        (
            {"sif": 1e-3, "frequencies": "/none.parquet", "path": "all-MiniLM-L6-v2"},
            r"expected word vectors .* found the bert model all-MiniLM-L6-v2; name a file",
        ),
    ],
)
def test_invalid_settings_are_refused(small, changes, message):
    with pytest.raises(ModelError, match=message):
        open_folder(EncoderSettings.model_validate({"path": str(small), **changes}))
