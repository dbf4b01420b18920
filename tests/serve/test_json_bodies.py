"""Bodies are parsed as Python's parser would, or refused."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st

from pipeline.serve.json_bodies import JsonRequest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values, max_size=5) | st.dictionaries(st.text(), values, max_size=5),
)


def parsed(body: bytes) -> Any:
    """Return the value of a request with this body."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return asyncio.run(JsonRequest({"type": "http"}, receive).json())


@pytest.mark.hypothesis
@given(VALUES, st.booleans())
def test_bodies_have_the_values_that_pythons_parser_finds(value: Any, is_ascii: bool):
    body = json.dumps(value, ensure_ascii=is_ascii).encode()
    found, expected = parsed(body), json.loads(body)
    assert found == expected
    assert repr(found) == repr(expected), "1, 1.0 and True differ"


def test_a_byte_order_mark_is_skipped():
    assert parsed(b'\xef\xbb\xbf{"k": 1}') == {"k": 1}


@pytest.mark.parametrize("body", [b'{"k":1,x}', b'{"a": 1,\n "b": x}', b"{\r\n\n 'a': 1}"])
def test_the_error_has_the_position_of_pythons_parser(body: bytes):
    with pytest.raises(json.JSONDecodeError) as found:
        parsed(body)
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(body)
    assert found.value.pos == expected.value.pos


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"k": 1,}', b'{"k": 1} 2', b'{"queries": ["\\ud800"]}', b"\xff", b"[" * 100_000]
)
def test_other_bodies_are_refused(body: bytes):
    with pytest.raises(json.JSONDecodeError):
        parsed(body)


PADDING = " " * (1 << 17)  # bodies of this size are looked through before they are parsed


@pytest.mark.parametrize("unit", ["{}", "[]", "[[]]", '{"a":0}', '"",[]', r'"\"[\\",[]'])
def test_a_large_body_with_more_values_than_a_search_has_is_not_parsed(unit: str):
    body = f'{PADDING}{{"queries": [{",".join([unit] * 300)}]}}'.encode()
    with pytest.raises(HTTPException) as refused:
        parsed(body)
    assert refused.value.status_code == 413


def test_too_many_numbers_are_not_parsed_and_those_of_large_vectors_are():
    rows = [[1] * 4_096] * 256
    assert parsed(json.dumps({"vectors": rows}).encode()) == {"vectors": rows}
    with pytest.raises(HTTPException):
        parsed(b'{"vectors": [[' + b"0," * (1 << 22) + b"0]]}")


@pytest.mark.parametrize("sign", ["{", "[", ",", '"', "\\", '\\"', '\\\\"[', "\n"])
def test_signs_within_the_strings_of_a_large_body_are_not_counted(sign: str):
    body = {"queries": [sign * 5_000, PADDING, sign * 5_000]}
    assert parsed(json.dumps(body).encode()) == body
