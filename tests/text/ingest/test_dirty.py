"""Every kind of bad input is encoded and counted, quarantined with a reason, or an error with a remedy."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.text.ingest.ingest import ingest
from tests.text.ingest.outcomes import outcome, write_bytes, write_parquet


def invalid_string_array(values):
    """A string array with bytes that are not valid UTF-8, as some writers leave it."""
    binary = pa.array(values, pa.binary())
    validity, offsets, content = binary.buffers()
    return pa.StringArray.from_buffers(len(binary), offsets, content, validity)


def test_invalid_texts_and_ids_of_a_parquet_file_are_quarantined(corpus, store):
    texts = [
        b"good",
        None,
        b"",
        b" \t\xe2\x80\xa8",
        b"\xff\xfe",
        b"nul\x00",
        b"no id",
        b"long " * 200_000,
        "ü".encode(),
        b"again",
    ]
    for kind in ("binary", "string"):
        write_parquet(
            corpus,
            f"{kind}.parquet",
            id=[f"{kind} {number}" if number != 6 else None for number in range(9)] + [f"{kind} 0"],
            text=pa.array(texts) if kind == "binary" else invalid_string_array(texts),
        )
        live, bad, counts = outcome(
            corpus.model_copy(update={"uri": f"{corpus.uri}/{kind}.parquet"}), store, max_quarantined=0.6
        )
        assert [(name, text[:6]) for name, text in live] == [
            (f"{kind} {n}", text) for n, text in ((0, "good"), (5, "nul\x00"), (7, "long l"), (8, "ü"))
        ]
        assert len(live[2][1]) == 999_999  # a million characters are kept
        reasons = ["empty", "empty", "empty", "invalid_utf8", "null_id", "duplicate_id"]
        assert bad == [
            (f"{kind}.parquet", row, reason) for row, reason in zip([1, 2, 3, 4, 6, 9], reasons, strict=True)
        ]
        assert counts["control_characters"] == 1
        assert (
            counts
            | {"rows": 10, "good": 4, "quarantined": 6, "quarantined_empty": 3, "quarantined_duplicate_id": 1}
            == counts
        )


def test_invalid_json_lines_are_quarantined_with_a_reason(corpus, store):
    lines = [
        b'{"id":"a","text":"lone \\ud800 half"}',
        b'{"id":"b","text":"pair \\ud83d\\ude00"}',
        b"{",
        b"",
        b'{"id":"c","text":"\xff"}',
        b'{"id":null,"text":"x"}',
        b'{"id":"d","text":"\\u0000\\u0007"}',
        b'{"id":"e","text":["x"]}',
        b'{"id":"a","text":"again"}',
    ]
    write_bytes(corpus, "a.ndjson.gz", gzip.compress(b"\n".join(lines)))
    live, bad, counts = outcome(corpus, store, max_quarantined=0.7)
    assert live == [("a", "lone \ufffd half"), ("b", "pair 😀"), ("d", "\x00\x07")]
    assert bad == [
        ("a.ndjson.gz", row, reason)
        for row, reason in (
            (2, "invalid_json"),
            (4, "invalid_utf8"),
            (5, "null_id"),
            (7, "wrong_type"),
            (8, "duplicate_id"),
        )
    ]
    assert (counts["surrogates_replaced"], counts["control_characters"], counts["rows"]) == (1, 1, 8)


def test_quarantine_shows_file_row_reason_and_text(corpus, store):
    write_parquet(corpus, id=["a", "b"], text=pa.array([b"fine", b"\xff" * 300]))
    ingested = ingest(corpus, 100, store)
    assert pq.read_table(store.open(ingested.quarantine.path)).to_pylist() == [
        {
            "file": "a.parquet",
            "row": 1,
            "id": "b",
            "reason": "invalid_utf8",
            "detail": "column text",
            "excerpt": "\ufffd" * 200,
        },
    ]


def test_kept_strings_must_be_utf8_and_kept_bytes_need_not(corpus, store):
    write_parquet(
        corpus,
        id=["a", "b"],
        text=["x", "y"],
        raw=[b"\xff", b"\x00"],
        label=invalid_string_array([b"fine", b"\xff"]),
    )
    assert outcome(corpus, store, keep=("raw",))[0] == [("a", "x"), ("b", "y")]
    live, bad, _ = outcome(corpus, store, keep=("raw", "label"))
    assert (live, bad) == ([("a", "x")], [("a.parquet", 1, "invalid_utf8")])


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(4),
        pa.binary_view(),
        pa.string_view(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
)
def test_text_of_every_string_type_is_read(corpus, store, kind):
    write_parquet(
        corpus,
        id=["a", "b"],
        text=pa.array([b"text", None]).cast(kind),
    )
    assert outcome(corpus, store)[0] == [("a", "text")]


def test_a_corpus_whose_text_column_has_the_null_type_is_refused(corpus, store):
    write_parquet(corpus, id=["a", "b"], text=pa.nulls(2))
    with pytest.raises(DataError, match="empty 2"):
        ingest(corpus, 100, store)


def test_id_with_invalid_utf8_is_quarantined(corpus, store):
    write_parquet(corpus, id=invalid_string_array([b"a", b"\xff"]), text=["x", "y"])
    assert outcome(corpus, store)[:2] == ([("a", "x")], [("a.parquet", 1, "invalid_utf8")])


def test_a_corpus_of_invalid_rows_only_is_refused_with_counts_and_reasons(corpus, store):
    write_parquet(corpus, id=["a", None, "c"], text=["", "x", " "])
    with pytest.raises(DataError) as caught:
        ingest(corpus, 100, store)
    assert caught.value.found == "3 rows (empty 2, null_id 1)"
    listed = caught.value.remedy.removeprefix("see ")
    assert pq.read_table(listed)["reason"].to_pylist() == ["empty", "null_id", "empty"]


def test_max_quarantined_holds_on_every_run(corpus, store):
    write_parquet(corpus, id=["a", "b", "a"], text=["x", "", "y"])
    assert ingest(corpus.model_copy(update={"max_quarantined": 0.7}), 100, store).counts["good"] == 1
    for _ in range(2):  # on the second run the corpus is complete already
        found = r"found 2 of 3 rows \(duplicate_id 1, empty 1\); see .*parquet"
        with pytest.raises(DataError, match=rf"at most 50% bad rows \(corpus.max_quarantined\), {found}"):
            ingest(corpus, 100, store)


ONE_EACH = pa.array([0, 1, 2, 3], pa.int32())
SHAPES = {
    "flat": lambda values: values,
    "list": lambda values: pa.ListArray.from_arrays(ONE_EACH, values),
    "struct": lambda values: pa.StructArray.from_arrays([values], ["name"]),
    "map": lambda values: pa.MapArray.from_arrays(ONE_EACH, pa.array(["x", "y", "z"]), values),
    "list of structs": lambda values: SHAPES["list"](SHAPES["struct"](values)),
    "dictionary in a list": lambda values: SHAPES["list"](
        pa.DictionaryArray.from_arrays(ONE_EACH[:3], values)
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_with_invalid_utf8_inside_of_a_kept_value_is_quarantined(corpus, store, shape):
    kept = SHAPES[shape](invalid_string_array([b"fine", b"caf\xe9", b"good"]))
    write_parquet(corpus, id=["a", "b", "c"], text=["x", "y", "z"], kept=kept)
    live, bad, counts = outcome(corpus, store, keep=("kept",))
    assert (live, bad) == ([("a", "x"), ("c", "z")], [("a.parquet", 1, "invalid_utf8")])
    assert "kept_values_dropped" not in counts


def numbers(kind, dtype, values):
    """An array of values that Arrow does not check."""
    return pa.Array.from_buffers(kind, 3, [None, pa.py_buffer(np.array(values, dtype).tobytes())])


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "dictionary in a list"])
@pytest.mark.parametrize(
    "values",
    [
        numbers(pa.time64("us"), "<i8", [0, 86_400_000_000, 5]),
        numbers(pa.time32("ms"), "<i4", [0, -13_899_000, 5]),
        numbers(pa.decimal128(5, 2), "<i8", [1, 0, 100_000, 0, 3, 0]),
    ],
    ids=["24:00", "negative time", "decimal of too many digits"],
)
def test_invalid_kept_values_become_null_and_are_counted(corpus, store, shape, values):
    write_parquet(corpus, id=["a", "b", "c"], text=["x", "y", "z"], kept=SHAPES[shape](values))
    ingested = ingest(corpus.model_copy(update={"keep": ("kept",)}), 100, store)
    kept = pq.read_table(store.open(ingested.units[0].path))["kept"].combine_chunks()
    kept.validate(full=True)
    assert kept.is_null().to_pylist() == [False, True, False]
    assert kept.drop_null().equals(SHAPES[shape](values).take(pa.array([0, 2])).cast(kept.type))
    assert (ingested.counts["good"], ingested.counts["kept_values_dropped"]) == (3, 1)
