"""White space, surrogates, control characters and keys, against Python's own string methods and hashlib."""

import hashlib
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.normalize import (
    blake2b_digests,
    count_control_characters,
    normalize,
    text_keys,
    valid_utf8,
)


def test_white_space_is_stripped_as_by_python():
    texts = [
        f"{chr(point)}a{chr(point)}b{chr(point)}"
        for point in range(sys.maxunicode + 1)
        if not 0xD800 <= point < 0xE000
    ]
    assert normalize(pa.array(texts)).to_pylist() == [text.strip() for text in texts]


@given(st.lists(st.none() | st.text(alphabet=st.characters(exclude_categories=()), max_size=8), max_size=20))
def test_normalize_strips_and_replaces_lone_surrogates(texts):
    expected = [
        None
        if text is None
        else "".join(
            "\ufffd" if 0xD800 <= ord(character) < 0xE000 else character for character in text
        ).strip()
        for text in texts
    ]
    assert normalize(texts).to_pylist() == expected
    assert normalize(normalize(texts)).to_pylist() == expected


def test_control_characters_are_kept_and_counted():
    texts = normalize(
        ["nul\x00inside", "bell\x07\x07", "next line\x85inside", "tab\tand\nline\r\nend", "", None]
    )
    assert texts.to_pylist() == [
        "nul\x00inside",
        "bell\x07\x07",
        "next line\x85inside",
        "tab\tand\nline\r\nend",
        "",
        None,
    ]
    assert count_control_characters(texts) == 3
    assert count_control_characters(texts[:0]) == 0


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_key_is_blake2b_of_the_bytes_for_every_array_layout(kind):
    texts = ["", "é", "a" * 1000, "z"]
    expected = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
    array = pa.array(texts, kind)
    assert text_keys(array).to_pylist() == expected
    assert text_keys(array[1:3]).to_pylist() == expected[1:3]
    assert text_keys(pa.array([None, "é"], kind)).to_pylist() == [None, expected[1]]
    assert blake2b_digests(array[:0], 8).type == pa.binary(8)


def test_invalid_utf8_is_found_in_binary_and_in_string_arrays():
    values = [b"fine", b"\xff", None, "é".encode(), b"\xed\xa0\x80", b""]  # \xed\xa0\x80 would be a surrogate
    binary = pa.array(values, pa.binary())
    validity, offsets, content = binary.buffers()
    mislabelled = pa.StringArray.from_buffers(len(binary), offsets, content, validity)
    for array in (binary, mislabelled):
        assert valid_utf8(array).tolist() == [True, False, True, True, False, True]
    np.testing.assert_array_equal(valid_utf8(binary[2:4]), [True, True])
