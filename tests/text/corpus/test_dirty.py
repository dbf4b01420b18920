"""Every kind of bad input is encoded and counted, quarantined with a reason, or an error with a remedy."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.store import open_store
from pipeline.text.corpus.ingest import ingest


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "in").mkdir()
    return CorpusSettings(uri=str(tmp_path / "in"))


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "out")


def parquet(corpus, name="a.parquet", **columns):
    path = f"{corpus.uri}/{name}"
    pq.write_table(pa.table(columns), path)
    return path


def raw(corpus, name, content):
    Path(corpus.uri, name).write_bytes(content)


def outcome(corpus, store, **changes):
    """(live (id, text) pairs, (file, row, reason) of the quarantine, counts)"""
    made = ingest(corpus.model_copy(update=changes), 100, store)
    live = [
        (row["id"], row["text"])
        for unit in made.units
        for row in pq.read_table(store.open(unit.path)).to_pylist()
    ]
    bad = pq.read_table(store.open(made.quarantine.path)).to_pylist() if made.quarantine else []
    return live, [(row["file"], row["row"], row["reason"]) for row in bad], made.counts


def invalid_string_array(values):
    """A string array with bytes that are not valid UTF-8, as some writers leave it."""
    binary = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(binary), *[binary.buffers()[place] for place in (1, 2, 0)])


def test_bad_texts_and_ids_of_a_parquet_file(corpus, store):
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
        parquet(
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


def test_bad_json_lines(corpus, store):
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
    raw(corpus, "a.ndjson.gz", gzip.compress(b"\n".join(lines)))
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
    parquet(corpus, id=["a", "b"], text=pa.array([b"fine", b"\xff" * 300]))
    made = ingest(corpus, 100, store)
    assert pq.read_table(store.open(made.quarantine.path)).to_pylist() == [
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
    parquet(
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
        pa.null(),
    ],
)
def test_text_of_every_string_type_is_read(corpus, store, kind):
    parquet(
        corpus,
        id=["a", "b"],
        text=pa.array([b"text", None] if not pa.types.is_null(kind) else [None, None]).cast(kind),
    )
    if pa.types.is_null(kind):
        with pytest.raises(DataError, match="empty 2"):
            ingest(corpus, 100, store)
    else:
        assert outcome(corpus, store)[0] == [("a", "text")]


def test_id_with_invalid_utf8_is_quarantined(corpus, store):
    parquet(corpus, id=invalid_string_array([b"a", b"\xff"]), text=["x", "y"])
    assert outcome(corpus, store)[:2] == ([("a", "x")], [("a.parquet", 1, "invalid_utf8")])


def damaged(path, change):
    Path(path).write_bytes(change(Path(path).read_bytes()))


UNUSABLE = {
    "missing text": (
        lambda corpus: parquet(corpus, "z.parquet", id=["x"], txt=["y"]),
        ["'text' (corpus.text)", "the columns id, txt", "set corpus.text: txt?"],
    ),
    "missing id": (
        lambda corpus: parquet(corpus, "z.parquet", text=["y"]),
        ["'id' (corpus.id)", "the columns text"],
    ),
    "float id": (
        lambda corpus: parquet(corpus, "z.parquet", id=[1.0], text=["y"]),
        ["'id' (corpus.id) of type string or integer", "found double"],
    ),
    "text of numbers": (
        lambda corpus: parquet(corpus, "z.parquet", id=["x"], text=[5]),
        ["'text' (corpus.text) of type string", "found int64"],
    ),
    "list of texts": (lambda corpus: parquet(corpus, "z.parquet", id=["x"], text=[["y"]]), ["found list<"]),
    "integer id beside strings": (
        lambda corpus: parquet(corpus, "z.parquet", id=[1], text=["y"]),
        ["'id' (corpus.id) of type string, as in a.parquet", "found integer"],
    ),
    "integer id in JSON": (
        lambda corpus: raw(corpus, "z.jsonl", b'{"id":1,"text":"y"}'),
        ["string, as in a.parquet", "found integer"],
    ),
    "zero bytes": (
        lambda corpus: raw(corpus, "z.parquet", b""),
        ["a readable file", "Parquet file size is 0 bytes"],
    ),
    "not Parquet": (
        lambda corpus: raw(corpus, "z.parquet", b"id,text\n1,one\n"),
        ["a readable file", "Parquet magic bytes not found"],
    ),
    "cut off": (
        lambda corpus: damaged(
            parquet(corpus, "z.parquet", id=["x"], text=["y"]), lambda content: content[:-9]
        ),
        ["a readable file"],
    ),
    "hole in the middle": (
        lambda corpus: damaged(
            parquet(corpus, "z.parquet", id=[f"{n}" for n in range(9999)], text=["y"] * 9999),
            lambda content: content[:60] + b"\xff" * 400 + content[460:],
        ),
        ["a readable file"],
    ),
    "damaged gzip": (
        lambda corpus: raw(corpus, "z.jsonl.gz", gzip.compress(b'{"id":"x","text":"y"}\n' * 99999)[:-9]),
        ["a complete gzip file"],
    ),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_file_is_an_error_or_is_skipped_as_a_whole(corpus, store, kind):
    make, words = UNUSABLE[kind]
    parquet(corpus, id=["a", "b"], text=["one", "two"])
    make(corpus)
    with pytest.raises(DataError) as caught:
        ingest(corpus, 100, store)
    assert caught.value.exit_code == 3
    assert all(part in str(caught.value) for part in [f"{corpus.uri}/z.", *words])
    assert (
        "text" in caught.value.remedy
        or "file" in caught.value.remedy
        or "corpus.id" in caught.value.remedy
        or "write it again" in caught.value.remedy
    )

    live, bad, counts = outcome(corpus, store, bad_files="skip")
    assert live == [("a", "one"), ("b", "two")]
    assert [(file[:2], row, reason) for file, row, reason in bad] == [("z.", -1, "bad_file")]
    assert counts | {"bad_files": 1, "rows": 2, "good": 2, "quarantined": 0} == counts


def test_file_with_integer_ids_among_string_ids_is_skipped(corpus, store):
    parquet(corpus, "a.parquet", id=[1, 2], text=["x", "y"])
    parquet(corpus, "b.parquet", id=["1"], text=["z"])
    assert outcome(corpus, store, bad_files="skip")[0] == [(1, "x"), (2, "y")]


def test_corpus_without_rows_is_refused(corpus, store):
    parquet(corpus, id=pa.array([], pa.string()), text=pa.array([], pa.string()))
    raw(corpus, "b.jsonl", b"")
    with pytest.raises(
        DataError, match=r"at least one row with an id and a text, found 0 rows; check corpus\.uri"
    ) as caught:
        ingest(corpus, 100, store)
    assert caught.value.exit_code == 3


def test_only_bad_rows_name_counts_reasons_and_the_list(corpus, store):
    parquet(corpus, id=["a", None, "c"], text=["", "x", " "])
    with pytest.raises(DataError) as caught:
        ingest(corpus, 100, store)
    assert caught.value.found == "3 rows (empty 2, null_id 1)"
    listed = caught.value.remedy.removeprefix("see ")
    assert pq.read_table(listed)["reason"].to_pylist() == ["empty", "null_id", "empty"]


def test_only_bad_files_are_named_in_the_error(corpus, store):
    raw(corpus, "a.parquet", b"")
    with pytest.raises(DataError, match="found 0 rows, 1 unusable files; see"):
        ingest(corpus.model_copy(update={"bad_files": "skip"}), 100, store)


def test_max_quarantined_holds_on_every_run(corpus, store):
    parquet(corpus, id=["a", "b", "a"], text=["x", "", "y"])
    assert ingest(corpus.model_copy(update={"max_quarantined": 0.7}), 100, store).counts["good"] == 1
    for _ in range(2):  # on the second run the corpus is complete already
        found = r"found 2 of 3 rows \(duplicate_id 1, empty 1\); see .*parquet"
        with pytest.raises(DataError, match=rf"at most 50% bad rows \(corpus.max_quarantined\), {found}"):
            ingest(corpus, 100, store)


def test_missing_file_is_named_in_the_error(corpus, store, tmp_path):
    (tmp_path / "in" / "a.parquet").symlink_to(tmp_path / "in" / "gone.parquet")
    with pytest.raises(DataError, match="nothing there"):
        ingest(corpus, 100, store)
