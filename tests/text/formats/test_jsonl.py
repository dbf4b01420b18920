"""JSON lines are read as by Python's json, whichever parser a block takes."""

import gzip
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.text.formats.columns import Columns
from pipeline.text.formats.reader import read_batches
from pipeline.text.sources.sources import list_files
from tests.text.ingest.json_lines import characters, rows_of, values, write_json_lines

rows = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.text(characters, max_size=4),
        "text": values | st.text(characters, max_size=12),
        "number": values,
        "other": values,
    },
)


@given(
    st.lists(
        rows
        | st.sampled_from(
            [
                b"",
                b"{",
                b'{"id":"a"',
                b"[1]",
                b"nul",
                b'{"id":"a","text":"\xff"}',
                b'{"id":"x","id":"y","text":"t"}',
                b'{"id":"x","text":"t","te\\u0078t":"t"}',
                b'{"id":"x","text":"t","number":1,"number":null}',
                b'{"id":"x","text":"t","number":{"a":[{"b":1,"b":2}]}}',
                b'{"id":"x","text":"t","other":1,"other":{"a":1,"a":2}}',
            ]
        ),
        max_size=12,
    ),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
)
def test_every_line_is_a_row_or_is_rejected_as_by_python(tmp_path, lines, end, ascii_only):
    encoded = [
        line
        if isinstance(line, bytes)
        else json.dumps(line, ensure_ascii=ascii_only).encode(errors="surrogatepass")
        for line in lines
    ]
    columns = Columns(pa.string(), (pa.field("number", pa.int64()),))
    good, bad, surrogates = rows_of(
        write_json_lines(tmp_path, *encoded, end=end), CorpusSettings(keep=("number",)), columns
    )
    expected = {number: oracle(line) for number, line in enumerate(encoded) if line.strip()}
    assert {row["row"]: (row["id"], row["text"], row["number"]) for row in good} == {
        row: values for row, values in expected.items() if not isinstance(values, str)
    }
    assert {row["row"]: row["reason"] for row in bad} == {
        row: reason for row, reason in expected.items() if isinstance(reason, str)
    }
    texts = {row["row"]: json.loads(encoded[row["row"]])["text"] for row in good}
    assert surrogates == [row for row, text in texts.items() if without_surrogates(text) != text]


def oracle(line):
    """The expected (id, text, number) of a line, or the reason why it is quarantined."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError:
        return "invalid_utf8"
    except ValueError:
        return "invalid_json"
    if not isinstance(value, dict) or is_ambiguous(line):
        return "invalid_json"
    number, text = value.get("number"), value.get("text")
    number = number if type(number) is int and -(2**63) <= number < 2**63 else None
    if not isinstance(text, str | None):
        return "wrong_type"
    if value.get("id") is None:
        return "null_id"
    return (
        (without_surrogates(value["id"]), without_surrogates(text).strip(), number)
        if text is not None and without_surrogates(text).strip()
        else "empty"
    )


def is_ambiguous(line):
    """Whether an object has one of the keys that are read, or a key inside of their values, twice."""

    def has_twice(pairs, keys):
        names = [name for name, _ in pairs if keys is None or name in keys]
        inner = [value for name, value in pairs if keys is None or name in keys]
        inner += [item for value in inner if isinstance(value, list) for item in value]
        return len(names) > len(set(names)) or any(
            has_twice(value[1], None) for value in inner if isinstance(value, tuple)
        )

    _, pairs = json.loads(line, object_pairs_hook=lambda pairs: ("object", pairs))
    return has_twice(pairs, {"id", "text", "number"})


def without_surrogates(text):
    return "".join("\ufffd" if 0xD800 <= ord(character) < 0xE000 else character for character in text)


def test_result_does_not_depend_on_blocks(tmp_path):
    lines = [
        {"id": number, "text": f"row {number} " + "x" * (number % 977)} for number in range(9000)
    ]  # 4.6 MB: several blocks
    lines[4000] = b"{broken"
    lines[5000] = b""
    expected = [
        (row["id"], number, row["text"].strip()) for number, row in enumerate(lines) if isinstance(row, dict)
    ]
    for name in ("a.jsonl", "a.jsonl.gz"):
        good, bad, _ = rows_of(write_json_lines(tmp_path, *lines, name=name))
        assert [(row["id"], row["row"], row["text"]) for row in good] == expected
        assert [(row["row"], row["reason"]) for row in bad] == [(4000, "invalid_json")]


def test_gzip_members_and_byte_order_marks_are_read(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(
        gzip.compress(b'\xef\xbb\xbf{"id":1,"text":"a"}\n') + gzip.compress(b'{"id":2,"text":"b"}')
    )
    good, bad, _ = rows_of(tmp_path / "a.json.gz")
    assert ([row["id"] for row in good], bad) == ([1, 2], [])


def test_two_objects_on_one_line_do_not_shift_the_rows_after_them(tmp_path):
    good, bad, _ = rows_of(
        write_json_lines(
            tmp_path,
            b'{"id":"a","text":"a"}{"id":"b","text":"b"}',
            b'{"id":"c",',
            b'"text":"c"}',
            b'{"id":"d","text":"d"}',
        )
    )
    assert [(row["id"], row["row"]) for row in good] == [("d", 3)]
    assert [row["row"] for row in bad] == [0, 1, 2]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"id":"b","text":"old","text":"new"}', "text"),
        (b'{"id":"b","text":"b","meta":{"lang":"de","lang":"en"}}', "lang"),
        (b'{"id":"b","text":"b","price":1,"price":2}', "price"),
    ],
)
def test_a_line_with_a_key_twice_is_quarantined(tmp_path, line, key):
    """Python would take the last value, other parsers the first; nobody would notice."""
    sound = {"id": "a", "text": "a", "price": 3, "meta": {"lang": "fr"}}
    corpus = CorpusSettings(keep=("meta",), where="price > 0")
    unread = b'{"id":"c","text":"c","price":3,"meta":{"lang":"fr"},"more":1,"more":2}'
    lines = [{**sound, "id": "e"}, sound, line, unread]
    good, bad, _ = rows_of(write_json_lines(tmp_path, *lines), corpus)
    assert [row["id"] for row in good] == ["e", "a", "c"], "keys that nothing reads do not matter"
    assert (bad[0]["row"], bad[0]["reason"]) == (2, "invalid_json")
    assert bad[0]["detail"] == f'the key "{key}" is there more than once'


def test_long_text_is_complete(tmp_path):
    text = "wörd " * 600_000  # 3.6 MB: longer than a block
    good, _, _ = rows_of(
        write_json_lines(tmp_path, {"id": "long", "text": text}, {"id": "short", "text": "s"})
    )
    assert [row["text"] for row in good] == [text.strip(), "s"]


def test_a_broken_line_does_not_change_the_rows_of_a_partition(tmp_path):
    lines = [
        {"id": 1, "text": "a", "lang": "de"},
        {"id": 2, "text": "b", "lang": None},
        {"id": 3, "text": "c"},
    ]
    lines = [{**line, "year": year} for line, year in zip(lines, (1999, None, None), strict=True)]
    folder = tmp_path / "lang=en" / "year=2024"
    folder.mkdir(parents=True)
    for broken_lines in ([], [b"{broken"]):
        write_json_lines(folder, *lines, *broken_lines)
        corpus = CorpusSettings(uri=str(tmp_path), keep=("lang", "year"))
        good = [
            row for batch in read_batches(list_files(corpus)[0], corpus) for row in batch.good.to_pylist()
        ]
        assert [(row["lang"], row["year"]) for row in good] == [("de", 1999), ("en", 2024), ("en", 2024)]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([b'[{"id": 1, "text": "a"}]'], "a JSON array"),
        ([{"id": 1, "txt": "a"}], "set corpus.text: txt"),
        ([{"key": 1, "text": "a"}], "'id' (corpus.id), found the columns key, text"),
        ([{"id": 1.5, "text": "a"}], "string or integer, found 1.5 (float)"),
        ([{"id": True, "text": "a"}], "string or integer, found true (bool)"),
        ([{"id": 1, "text": 5}, {"id": 2, "text": None}], "string, found int"),
    ],
)
def test_unusable_file_names_file_column_expected_and_found(tmp_path, lines, words):
    with pytest.raises(DataError) as caught:
        rows_of(write_json_lines(tmp_path, *lines))
    assert words in str(caught.value)
    assert str(tmp_path / "a.jsonl") in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-20],
        lambda content: content[:500] + b"\0" * 100 + content[600:],
        lambda content: b"\x1f\x8b" + content,
    ],
)
def test_damaged_gzip_is_a_data_error(tmp_path, damage):
    file = write_json_lines(
        tmp_path,
        *({"id": number, "text": f"text {number * 7919}"} for number in range(5000)),
        name="a.jsonl.gz",
    )
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=r"a\.jsonl\.gz"):
        rows_of(file)


def test_lone_surrogates_of_a_rejected_row_are_without_surrogates(tmp_path):
    file = write_json_lines(
        tmp_path,
        b'{"id": "a", "text": "x"}',
        rb'{"id": 1.5, "text": "\ud800"}',
        rb'{"id": "\ud800", "text": 5}',
    )
    _, bad, _ = rows_of(file)
    assert [(row["id"], row["excerpt"]) for row in bad] == [("1.5", "\ufffd"), ("\ufffd", None)]
