"""JSON lines against Python's json module, line by line; blocks, encodings and damage."""

import gzip
import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.text.columns import Columns
from pipeline.text.reader import read_batches, survey
from pipeline.text.sources import list_files


def rows_of(file, corpus=None, columns=None):
    """(good rows, bad rows, rows with surrogates) of one file; columns: those of a survey when None."""
    corpus = (corpus or CorpusSettings()).model_copy(update={"uri": str(file)})
    files = list_files(corpus)
    batches = list(read_batches(files[0], corpus, columns or survey(files, corpus).columns))
    good, bad = [[row for batch in batches for row in getattr(batch, side).to_pylist()] for side in ("good", "bad")]
    return good, bad, sorted(row for batch in batches for row in batch.surrogates)


def written(tmp_path, *lines, name="a.jsonl", end=b"\n"):
    content = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + end for line in lines)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return tmp_path / name


characters = st.characters(exclude_categories=())
values = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(characters, max_size=4) | st.lists(st.integers(0, 9), max_size=2)
rows = st.fixed_dictionaries({}, optional={
    "id": st.none() | st.text(characters, max_size=4), "text": values | st.text(characters, max_size=12), "number": values, "other": values,
})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows | st.sampled_from([b"", b"{", b'{"id":"a"', b"[1]", b"nul", b'{"id":"a","text":"\xff"}', b'{"id":"x","id":"y","text":"t"}']), max_size=12),
       st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_every_line_is_a_row_or_has_a_reason_as_python_reads_it(tmp_path, lines, end, ascii_only):
    encoded = [line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=ascii_only).encode(errors="surrogatepass") for line in lines]
    columns = Columns(pa.string(), (pa.field("number", pa.int64()),))
    good, bad, surrogates = rows_of(written(tmp_path, *encoded, end=end), CorpusSettings(keep=("number",)), columns)
    expected = {number: oracle(line) for number, line in enumerate(encoded) if line.strip()}
    assert {row["row"]: (row["id"], row["text"], row["number"]) for row in good} == {row: found for row, found in expected.items() if not isinstance(found, str)}
    assert {row["row"]: row["reason"] for row in bad} == {row: found for row, found in expected.items() if isinstance(found, str)}
    texts = {row["row"]: json.loads(encoded[row["row"]])["text"] for row in good}
    assert surrogates == [row for row, text in texts.items() if replaced(text) != text]


def oracle(line):
    """(id, text, number) that must come out, or the reason for setting the line aside."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError:
        return "invalid_utf8"
    except ValueError:
        return "invalid_json"
    if not isinstance(value, dict):
        return "invalid_json"
    number, text = value.get("number"), value.get("text")
    if not (number is None or (type(number) is int and -(2**63) <= number < 2**63)) or not isinstance(text, str | None):
        return "wrong_type"
    if value.get("id") is None:
        return "null_id"
    return (replaced(value["id"]), replaced(text).strip(), number) if text is not None and replaced(text).strip() else "empty"


def replaced(text):
    return "".join("\ufffd" if 0xD800 <= ord(one) < 0xE000 else one for one in text)


def test_blocks_do_not_show(tmp_path):
    lines = [{"id": number, "text": f"row {number} " + "x" * (number % 977)} for number in range(9000)]           # 4.6 MB: several blocks
    lines[4000] = b"{broken"
    lines[5000] = b""
    expected = [(row["id"], number, row["text"].strip()) for number, row in enumerate(lines) if isinstance(row, dict)]
    for name in ("a.jsonl", "a.jsonl.gz"):
        good, bad, _ = rows_of(written(tmp_path, *lines, name=name))
        assert [(row["id"], row["row"], row["text"]) for row in good] == expected
        assert [(row["row"], row["reason"]) for row in bad] == [(4000, "invalid_json")]


def test_two_gzip_members_and_a_byte_order_mark_are_read_through(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'\xef\xbb\xbf{"id":1,"text":"a"}\n') + gzip.compress(b'{"id":2,"text":"b"}'))
    good, bad, _ = rows_of(tmp_path / "a.json.gz")
    assert ([row["id"] for row in good], bad) == ([1, 2], [])


def test_two_objects_on_one_line_do_not_shift_the_rows_after_them(tmp_path):
    good, bad, _ = rows_of(written(tmp_path, b'{"id":"a","text":"a"}{"id":"b","text":"b"}', b'{"id":"c",', b'"text":"c"}', b'{"id":"d","text":"d"}'))
    assert [(row["id"], row["row"]) for row in good] == [("d", 3)]
    assert [row["row"] for row in bad] == [0, 1, 2]


def test_a_long_text_stays_whole(tmp_path):
    text = "wörd " * 600_000                             # 3.6 MB: longer than a block
    good, _, _ = rows_of(written(tmp_path, {"id": "long", "text": text}, {"id": "short", "text": "s"}))
    assert [row["text"] for row in good] == [text.strip(), "s"]


def test_kept_values_keep_their_type_or_are_set_aside(tmp_path):
    lines = [{"id": 1, "text": "a", "tags": ["x"], "price": 1}, {"id": 2, "text": "b", "tags": None, "price": 2.5},
             {"id": 3, "text": "c", "tags": "y", "price": 3}, {"id": 4, "text": "d"}, {"id": 5, "text": "e", "tags": ["\ud800"], "price": "6"}]
    corpus = CorpusSettings(uri=str(written(tmp_path, *lines)), keep=("tags", "price", "text"))
    assert survey(list_files(corpus), corpus).columns.kept == (pa.field("tags", pa.list_(pa.string())), pa.field("price", pa.float64()), pa.field("text", pa.string()))
    good, bad, _ = rows_of(tmp_path / "a.jsonl", corpus)
    assert [(row["id"], row["tags"], row["price"], row["kept.text"]) for row in good] == [(1, ["x"], 1.0, "a"), (2, None, 2.5, "b"), (4, None, None, "d")]
    assert [(row["row"], row["reason"], row["detail"]) for row in bad] == [
        (2, "wrong_type", 'tags is "y"'), (4, "wrong_type", 'tags is ["\\ud800"], price is "6"'),
    ]


@pytest.mark.parametrize(("lines", "said"), [
    ([b'[{"id": 1, "text": "a"}]'], "a JSON array"),
    ([{"id": 1, "txt": "a"}], "set corpus.text: txt"),
    ([{"key": 1, "text": "a"}], "'id' (corpus.id), found the columns key, text"),
    ([{"id": 1, "text": "a"}, {"id": "2", "text": "b"}, {}], "integer, as before, found \"2\" (string)"),
    ([{"id": 1.5, "text": "a"}], "string or integer, found 1.5 (float)"),
    ([{"id": True, "text": "a"}], "string or integer, found true (bool)"),
    ([{"id": 1, "text": 5}, {"id": 2, "text": None}], "string, found int"),
])
def test_a_file_that_cannot_be_used_says_file_column_expected_and_found(tmp_path, lines, said):
    with pytest.raises(DataError) as caught:
        rows_of(written(tmp_path, *lines))
    assert said in str(caught.value)
    assert str(tmp_path / "a.jsonl") in str(caught.value)


def test_an_id_of_another_type_far_down_names_its_file(tmp_path):
    lines = [{"id": number, "text": "some text " * 20} for number in range(20_000)]
    with pytest.raises(DataError, match=r"a\.jsonl.*integer, as before.*\"x\""):
        rows_of(written(tmp_path, *lines, {"id": "x", "text": "t"}))


@pytest.mark.parametrize("damage", [lambda content: content[:-20], lambda content: content[:500] + b"\0" * 100 + content[600:], lambda content: b"\x1f\x8b" + content])
def test_damaged_gzip_is_a_data_error(tmp_path, damage):
    file = written(tmp_path, *({"id": number, "text": f"text {number * 7919}"} for number in range(5000)), name="a.jsonl.gz")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=r"a\.jsonl\.gz"):
        rows_of(file)
