"""SIF weights a / (a + p) of words in averages, with word counts that are copied with the encoder."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.frequencies import read_frequencies
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.inference.word_average import sif_weights
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folder.wordfiles import minilm_table, write_counts, write_words
from tests.models.folders import LONG, TEXTS

COUNTS = {"the": 50, "cat": 30, "sat": 15, "dog": 5}
TABLE = {"the": [1, 1], "cat": [2, 0], "sat": [0, 1], "dog": [1, -1]}
SENTENCES = ("the cat", "the dog sat", "cat sat")


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MANTA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def small(tmp_path) -> Path:
    return write_words(tmp_path / "words.txt", tuple(TABLE), np.array(list(TABLE.values()), np.float32))


def encoder_of(path: Path, **changes: object) -> Encoder:
    return load_encoder(EncoderSettings.model_validate({"path": str(path), **changes}), EncodeSettings())


def test_the_weighted_averages_are_those_worked_out_by_hand(small, tmp_path):
    counts = write_counts(tmp_path / "counts.parquet", COUNTS)
    encoder = encoder_of(small, sif=1e-3, frequencies=str(counts))
    weights = sif_weights(encoder._tokenizer, read_frequencies(counts), 1e-3, lower=True)
    np.testing.assert_allclose(weights, [0.001996, 0.003322, 0.006623, 0.019608], atol=1e-6)
    np.testing.assert_allclose(
        encoder.encode(SENTENCES),
        [[0.004320, 0.000998], [0.007201, -0.003663], [0.003322, 0.003311]],
        atol=1e-6,
    )


def test_weights_equal_plain_numpy_on_the_tests_texts(tmp_path):
    words, table = minilm_table()
    texts = [text for text in (*TEXTS, LONG) if text]
    # some have signs at their ends, so the table does not contain them
    counted = Counter(word for text in texts for word in text.lower().split())
    counts = write_counts(tmp_path / "counts.parquet", counted)
    encoder = encoder_of(write_words(tmp_path / "words.txt", words, table), sif=0.01, frequencies=str(counts))
    total = sum(counted.values())
    for text, vector in zip(texts, encoder.encode(texts), strict=True):
        ids = encoder._tokenizer([text]).ids
        expected = [table[number] * 0.01 / (0.01 + counted.get(words[number], 0) / total) for number in ids]
        np.testing.assert_allclose(vector, np.mean(expected, axis=0), atol=1e-6)


def test_a_word_without_a_count_weighs_one_and_counts_of_spellings_are_added_where_case_does_not_matter(
    small, tmp_path
):
    counts = write_counts(tmp_path / "counts.parquet", {"The": 30, "the": 20, "other": 50, "dog": 0})
    encoder = encoder_of(small, sif=0.5, frequencies=str(counts))
    np.testing.assert_allclose(encoder.encode(["the", "dog cat"]), [[0.5, 0.5], [1.5, -0.5]], atol=1e-6)
    cased = write_words(tmp_path / "cased.txt", ("the", "The"), np.eye(2, dtype=np.float32))
    np.testing.assert_allclose(
        encoder_of(cased, sif=0.5, frequencies=str(counts)).encode(["The", "the"]),
        [[0, 0.5 / 0.8], [0.5 / 0.7, 0]],
        atol=1e-6,
    )


def test_a_copy_has_the_counts_in_it_and_is_the_same_space_whatever_became_of_the_file(small, tmp_path):
    counts = write_counts(tmp_path / "counts.parquet", COUNTS)
    settings = EncoderSettings(path=str(small), sif=1e-3, frequencies=str(counts))
    folder = open_folder(settings)
    assert "frequencies.parquet" in folder.files
    (tmp_path / "copy").mkdir()
    for name in folder.files:
        shutil.copy(folder.file(name), tmp_path / "copy" / name)
    expected = load_encoder(settings, EncodeSettings()).encode(SENTENCES)
    for happens in (lambda: None, lambda: write_counts(counts, {"the": 1}), counts.unlink):
        happens()
        copied = encoder_of(tmp_path / "copy", sif=1e-3, frequencies=str(counts))
        assert (copied.space_id, copied.folder.files) == (folder.space_id, folder.files)
        np.testing.assert_array_equal(copied.encode(SENTENCES), expected)
    assert encoder_of(tmp_path / "copy", sif=1e-3).space_id == folder.space_id
    assert encoder_of(tmp_path / "copy").space_id == open_folder(EncoderSettings(path=str(small))).space_id


def test_weight_and_counts_are_part_of_the_space_and_counts_that_nothing_needs_are_not(small, tmp_path):
    first, second = (
        str(write_counts(tmp_path / f"{number}.parquet", COUNTS | {"dog": number})) for number in (5, 6)
    )
    ways = [
        {},
        {"sif": 1e-3, "frequencies": first},
        {"sif": 1e-3, "frequencies": second},
        {"sif": 1e-4, "frequencies": first},
    ]
    assert len({encoder_of(small, **way).space_id for way in ways}) == 4
    assert encoder_of(small, frequencies=str(tmp_path / "none")).space_id == encoder_of(small).space_id


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sif": 1e-3},
            (
                r"encoder\.sif: expected how often words occur, in encoder\.frequencies, found null; name "
                r"a Parquet file"
            ),
        ),
        (
            {"sif": 1e-3, "frequencies": "/none.parquet"},
            r"encoder\.frequencies: expected a Parquet file .* found no such file /none\.parquet",
        ),
        (
            {"sif": 1e-3, "frequencies": "/none.parquet", "pooling": "max"},
            r"encoder\.sif: expected one of the poolings mean, sqrt_len, static, table, found 'max'",
        ),
        (
            {"sif": 1e-3, "frequencies": "/none.parquet", "path": "all-MiniLM-L6-v2"},
            r"expected word vectors .* found the bert model all-MiniLM-L6-v2; name a file",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(small, changes, message):
    with pytest.raises(ModelError, match=message):
        open_folder(EncoderSettings.model_validate({"path": str(small), **changes}))
