"""Every form of word vectors gives the same words and bits; other files are refused naming the wrong line."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.models.folder import vectorfile
from pipeline.models.folder.vectorfile import Layout, read_layout, read_vectors, word2vec_text
from tests.models.folder.wordfiles import FORMS, write_words

WORDS = (
    "the",
    "cat",
    ". . .",
    "naïve",
    "日本",
    "1",
    "3.14",
    "at name@domain.com",
    "U+2028:\u2028",
    "nbsp\u00a0word",
)


def read(file: Path) -> tuple[list[str], np.ndarray]:
    parts = list(read_vectors(file, "vectors"))
    return [word for words, _ in parts for word in words], np.concatenate([vectors for _, vectors in parts])


def vectors_of(count: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_bytes", [1, 100, 1 << 20])
def test_every_file_format_gives_the_same_words_and_bits(tmp_path, monkeypatch, form, ending, batch_bytes):
    monkeypatch.setattr(vectorfile, "_BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(vectorfile, "_CHUNK_BYTES", batch_bytes)
    # word2vec's binary form ends a word at its first space
    words = tuple(word for word in WORDS if form != "binary" or " " not in word)
    expected = vectors_of(len(words), 7)
    found, vectors = read(write_words(tmp_path / f"words.{ending}", words, expected, form))
    assert found == list(words)
    np.testing.assert_array_equal(vectors, expected)
    assert vectors.dtype == np.float32


def test_a_written_file_is_read_with_the_same_words_and_bits(tmp_path):
    vectors = vectors_of(len(WORDS), 7) * np.logspace(-30, 30, len(WORDS), dtype=np.float32)[:, None]
    vectors[0] = (0, -0.0, 1, -1, 1e-45, 3.4e38, 0.1)
    file = tmp_path / "words.txt"
    file.write_bytes(word2vec_text(WORDS, vectors))
    assert read_layout(file, "words") == Layout("text", 7, len(WORDS))
    words, found = read(file)
    assert words == list(WORDS)
    np.testing.assert_array_equal(found, vectors)


def test_the_format_is_detected_by_content(tmp_path):
    x = vectors_of(3, 5)
    layouts = [
        read_layout(write_words(tmp_path / f"{form}.bin", ("a", "b", "c"), x, form), "vectors")
        for form in FORMS
    ]
    assert layouts == [Layout("text", 5, None), Layout("text", 5, 3), Layout("binary", 5, 3)]


def test_other_line_ends_blank_lines_and_tabs_are_accepted(tmp_path):
    file = tmp_path / "words.txt"
    file.write_bytes(b"2 3\r\na 1 2 3 \r\n\r\nb\t4\t5\t6\r\n\n")
    words, vectors = read(file)
    assert words == ["a", "b"]
    np.testing.assert_array_equal(vectors, [[1, 2, 3], [4, 5, 6]])


def test_a_word_with_invalid_utf8_is_read(tmp_path):
    file = tmp_path / "words.bin"
    file.write_bytes(b"1 2\ncaf\xc3 " + np.array([1, 2], "<f4").tobytes())
    assert read(file)[0] == ["caf\ufffd"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"a 1 2 3\nb 4 5\n",
            r"vectors: line 2: expected a word and 3 finite numbers, found 'b 4 5'; correct",
        ),
        (b"a 1 2 3\nb 4 5 6 7\n", r"line 2: expected a word and 3 finite numbers, found 'b 4 5 6 7'"),
        (b"a 1 2 3\n\nb 4 x 6\n", r"line 3: expected a word and 3 finite numbers, found 'b \.\.\. x'"),
        (b"a 1 2 3\nb 4 nan 6\n", r"line 2: .* found 'b \.\.\. nan'"),
        (b"a 1 2 3\n 4 5 6\n", r"line 2: expected a word"),
        (b"3 2\na 1 2\nb 1 2\n", r"vectors: expected 3 words, as its first line says, found 2; fetch"),
        (b"1 2\na 1 2\nb 1 2\n", r"expected 1 words, as its first line says, found 2"),
        (b"2 0\na\nb\n", r"line 1: expected the number of words and their dimension, found dimension 0"),
        (b"2 999999999999\na 1 2\n", r"line 1: .* found dimension 999,999,999,999;"),
        (b"", r"line 1: expected a word and its numbers"),
        (
            b'{"model_type": "bert"}',
            (
                r"line 1: expected a word and its numbers.*give a file of word vectors, or the folder that "
                r"holds config\.json"
            ),
        ),
        (b"one two three\n", r"line 1: expected a word and its numbers"),
        (b"PK\x03\x04glove", r"found a zip archive; unpack it first"),
        (b"\xba\x16O/....", r"fastText's own binary form; give the \.vec file instead"),
        (gzip.compress(b"a 1 2 3\n" * 9_000)[:-20], r"expected a complete gzip file"),
        (
            b"2 3\na " + bytes(12) + b"\nb " + bytes(7),
            r"word 2: expected a word and 12 bytes, found the end of the file",
        ),
        (
            b"2 3\na " + bytes(12) + b"\nb " + b"\xff" * 12,
            r"word 2: expected a word and 3 finite numbers, .*, found 'b'",
        ),
        (
            b"9 4\na 1 2 3\nb 1 2 3\n" + b"c 1 2 3\n" * 9,
            r"word 4: expected a word and 4 finite numbers, .*; check the first line's two numbers",
        ),
    ],
)
def test_errors_name_the_line_of_the_file(tmp_path, content, message):
    file = tmp_path / "vectors"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read(file)


@pytest.mark.parametrize("header", ["", "2 3\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_byte_order_mark_is_not_part_of_the_first_word(tmp_path, header, pack):
    file = tmp_path / "vectors.txt"
    file.write_bytes(pack(f"\ufeff{header}the 1 2 3\ncat 4 5 6\n".encode()))
    ((words, vectors),) = read_vectors(file, str(file))
    assert words == ["the", "cat"]
    np.testing.assert_array_equal(vectors, [[1, 2, 3], [4, 5, 6]])
