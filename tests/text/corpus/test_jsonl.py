"""JSON lines are read as by Python's json, whichever parser a block takes."""

import gzip
import json
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.store import open_store
from pipeline.text.corpus.columns import MAX_LEAVES, Columns, count_leaves
from pipeline.text.corpus.ingest import ingest
from pipeline.text.corpus.json_values import MAX_DEPTH
from pipeline.text.corpus.reader import read_batches, survey_files
from pipeline.text.corpus.sources import list_files


def rows_of(file, corpus=None, columns=None):
    """(good rows, bad rows, rows with surrogates) of one file; columns: those of a survey_files when None."""
    corpus = (corpus or CorpusSettings()).model_copy(update={"uri": str(file)})
    files = list_files(corpus)
    batches = list(read_batches(files[0], corpus, columns or survey_files(files, corpus).columns))
    good, bad = [
        [row for batch in batches for row in getattr(batch, side).to_pylist()] for side in ("good", "bad")
    ]
    return good, bad, sorted(row for batch in batches for row in batch.surrogates)


def written(tmp_path, *lines, name="a.jsonl", end=b"\n"):
    content = b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + end for line in lines
    )
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return tmp_path / name


characters = st.characters(exclude_categories=())
values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(characters, max_size=4)
    | st.lists(st.integers(0, 9), max_size=2)
)
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
        written(tmp_path, *encoded, end=end), CorpusSettings(keep=("number",)), columns
    )
    expected = {number: oracle(line) for number, line in enumerate(encoded) if line.strip()}
    assert {row["row"]: (row["id"], row["text"], row["number"]) for row in good} == {
        row: found for row, found in expected.items() if not isinstance(found, str)
    }
    assert {row["row"]: row["reason"] for row in bad} == {
        row: found for row, found in expected.items() if isinstance(found, str)
    }
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
    number = number if type(number) is int and -(2**63) <= number < 2**63 else None
    if not isinstance(text, str | None):
        return "wrong_type"
    if value.get("id") is None:
        return "null_id"
    return (
        (replaced(value["id"]), replaced(text).strip(), number)
        if text is not None and replaced(text).strip()
        else "empty"
    )


def replaced(text):
    return "".join("\ufffd" if 0xD800 <= ord(one) < 0xE000 else one for one in text)


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
        good, bad, _ = rows_of(written(tmp_path, *lines, name=name))
        assert [(row["id"], row["row"], row["text"]) for row in good] == expected
        assert [(row["row"], row["reason"]) for row in bad] == [(4000, "invalid_json")]


def test_gzip_members_and_byte_order_marks_are_read(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(
        gzip.compress(b'\xef\xbb\xbf{"id":1,"text":"a"}\n') + gzip.compress(b'{"id":2,"text":"b"}')
    )
    good, bad, _ = rows_of(tmp_path / "a.json.gz")
    assert ([row["id"] for row in good], bad) == ([1, 2], [])


def test_a_gzip_file_that_unfolds_without_end_is_refused_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.text.corpus.jsonl._MAX_LINE_BYTES", 4 << 20)
    bomb = tmp_path / "a.jsonl.gz"
    bomb.write_bytes(gzip.compress(b" " * (64 << 20)))  # 64 KB
    tracemalloc.start()
    with pytest.raises(DataError, match="lines of at most 4 MiB"):
        rows_of(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


def test_two_objects_on_one_line_do_not_shift_the_rows_after_them(tmp_path):
    good, bad, _ = rows_of(
        written(
            tmp_path,
            b'{"id":"a","text":"a"}{"id":"b","text":"b"}',
            b'{"id":"c",',
            b'"text":"c"}',
            b'{"id":"d","text":"d"}',
        )
    )
    assert [(row["id"], row["row"]) for row in good] == [("d", 3)]
    assert [row["row"] for row in bad] == [0, 1, 2]


def test_long_text_is_complete(tmp_path):
    text = "wörd " * 600_000  # 3.6 MB: longer than a block
    good, _, _ = rows_of(written(tmp_path, {"id": "long", "text": text}, {"id": "short", "text": "s"}))
    assert [row["text"] for row in good] == [text.strip(), "s"]


def test_kept_values_keep_their_type_or_become_null(tmp_path):
    lines = [
        {"id": 1, "text": "a", "tags": ["x"], "price": 1},
        {"id": 2, "text": "b", "tags": None, "price": 2.5},
        {"id": 3, "text": "c", "tags": "y", "price": 3},
        {"id": 4, "text": "d"},
        {"id": 5, "text": "e", "tags": ["\ud800"], "price": "6"},
    ]
    corpus = CorpusSettings(uri=str(written(tmp_path, *lines)), keep=("tags", "price", "text"))
    assert survey_files(list_files(corpus), corpus).columns.kept == (
        pa.field("tags", pa.list_(pa.string())),
        pa.field("price", pa.float64()),
        pa.field("text", pa.string()),
    )
    batches = list(read_batches(list_files(corpus)[0], corpus))
    good, bad, _ = rows_of(tmp_path / "a.jsonl", corpus)
    assert [(row["id"], row["tags"], row["price"], row["kept.text"]) for row in good] == [
        (1, ["x"], 1.0, "a"),
        (2, None, 2.5, "b"),
        (3, None, 3.0, "c"),
        (4, None, None, "d"),
        (5, None, None, "e"),
    ]
    assert (bad, [batch.dropped for batch in batches]) == ([], [(2, 4, 4)])
    assert batches[0].head(3).dropped == (2,)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_kept_column_widens_to_values_of_later_blocks(tmp_path, name):
    late = {"price": 1100.5, "note": 3, "tags": ["x"], "late": "here"}
    lines = [
        {
            "id": number,
            "text": "some text " * 20,
            **({"price": 1, "note": None, "tags": []} if number < 12_000 else late),
        }
        for number in range(12_001)
    ]
    good, bad, _ = rows_of(
        written(tmp_path, *lines, name=name), CorpusSettings(keep=("price", "note", "tags", "late"))
    )
    assert (len(good), bad) == (12_001, [])
    assert [good[place][column] for place in (0, -1) for column in ("price", "note", "tags", "late")] == [
        1.0,
        None,
        [],
        None,
        1100.5,
        3,
        ["x"],
        "here",
    ]


def test_differing_kept_columns_lose_no_row(tmp_path):
    for name, value in (("a.jsonl", 1), ("b.jsonl", 2.5), ("c.jsonl", "three")):
        written(tmp_path, {"id": name, "text": "t", "price": value}, name=name)
    store = open_store(tmp_path / "_out")
    made = ingest(CorpusSettings(uri=str(tmp_path), keep=("price",)), 10, store)
    assert pq.read_table(store.local(made.units[0].path))["price"].to_pylist() == [1.0, 2.5, None]
    assert (made.counts["good"], made.counts["kept_values_dropped"]) == (3, 1)


@pytest.mark.parametrize(
    ("ids", "kind", "bad"),
    [
        ([2**63, 1, 2**64 - 1], pa.uint64(), []),
        ([1, 2**63, -1], pa.int64(), [1]),
        ([1, 2**63, 2**64], pa.uint64(), [2]),
        ([1, 2], pa.int64(), []),
    ],
)
def test_64_bit_ids_keep_their_value(tmp_path, ids, kind, bad):
    for keep in ((), ("id",)):
        corpus = CorpusSettings(
            uri=str(written(tmp_path, *({"id": one, "text": "t"} for one in ids))), keep=keep
        )
        assert survey_files(list_files(corpus), corpus).columns.id == kind
        good, wrong, _ = rows_of(tmp_path / "a.jsonl", corpus)
        assert [row["id"] for row in good] == [one for place, one in enumerate(ids) if place not in bad]
        assert [row["row"] for row in wrong] == bad


@pytest.mark.parametrize(("small", "kind"), [(5, pa.uint64()), (-5, pa.int64())])
def test_files_agree_on_uint64_if_no_id_is_negative(tmp_path, small, kind):
    written(tmp_path, {"id": small, "text": "t"}, name="a.jsonl")
    written(tmp_path, {"id": 2**63, "text": "t"}, name="b.jsonl")
    for schema, name in ((pa.int32(), "c.parquet"), (pa.uint64(), "d.parquet")):
        pq.write_table(pa.table({"id": pa.array([7], schema), "text": ["t"]}), tmp_path / name)
    corpus = CorpusSettings(uri=str(tmp_path))
    files = list_files(corpus)
    assert survey_files(files, corpus).columns.id == kind
    assert survey_files([files[0], files[2]], corpus).columns.id == pa.int64()
    assert survey_files([files[1], files[2]], corpus).columns.id == pa.uint64()


def test_a_partition_fills_the_same_rows_whether_or_not_another_line_is_broken(tmp_path):
    lines = [
        {"id": 1, "text": "a", "lang": "de"},
        {"id": 2, "text": "b", "lang": None},
        {"id": 3, "text": "c"},
    ]
    lines = [{**line, "year": year} for line, year in zip(lines, (1999, None, None), strict=True)]
    folder = tmp_path / "lang=en" / "year=2024"
    folder.mkdir(parents=True)
    for more in ([], [b"{broken"]):
        written(folder, *lines, *more)
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
        rows_of(written(tmp_path, *lines))
    assert words in str(caught.value)
    assert str(tmp_path / "a.jsonl") in str(caught.value)


def test_late_id_of_another_type_rejects_only_its_row(tmp_path):
    lines = [{"id": number, "text": "some text " * 20} for number in range(20_000)]
    good, bad, _ = rows_of(written(tmp_path, *lines, {"id": "x", "text": "t"}))
    assert (len(good), [(row["row"], row["detail"]) for row in bad]) == (
        20_000,
        [(20_000, 'id is "x", not an id of type int64')],
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-20],
        lambda content: content[:500] + b"\0" * 100 + content[600:],
        lambda content: b"\x1f\x8b" + content,
    ],
)
def test_damaged_gzip_is_a_data_error(tmp_path, damage):
    file = written(
        tmp_path,
        *({"id": number, "text": f"text {number * 7919}"} for number in range(5000)),
        name="a.jsonl.gz",
    )
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=r"a\.jsonl\.gz"):
        rows_of(file)


def nest(depth, value=1):
    for _ in range(depth):
        value = {"a": value}
    return value


def test_a_value_nested_too_deep_is_null_and_counted(tmp_path):
    values = [nest(300), nest(MAX_DEPTH + 1), nest(3), None, [nest(300)]]
    file = written(
        tmp_path, *({"id": place, "text": "t", "meta": value} for place, value in enumerate(values))
    )
    made = ingest(CorpusSettings(uri=str(file), keep=("meta",)), 10, open_store(tmp_path / "out"))
    assert made.counts["kept_values_dropped"] == 3
    assert pq.read_table(tmp_path / "out" / made.units[0].path)["meta"].to_pylist() == [
        None,
        None,
        nest(3),
        None,
        None,
    ]


def test_a_line_nested_too_deep_to_be_parsed_is_quarantined_and_its_neighbours_live(tmp_path):
    lines = [
        f'{{"id": {place}, "text": "t", "meta": {"[" * levels}{"]" * levels}}}'
        for place, levels in enumerate([300, 50_000, 300, 50_000])
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    corpus = CorpusSettings(uri=str(tmp_path / "a.jsonl"), keep=("meta",))
    store = open_store(tmp_path / "out")
    made = ingest(corpus, 10, store)
    assert (made.counts["good"], made.counts["kept_values_dropped"]) == (2, 2)
    assert made.quarantine is not None
    bad = pq.read_table(store.open(made.quarantine.path)).to_pylist()
    assert [(row["row"], row["reason"], row["detail"]) for row in bad] == [
        (1, "invalid_json", "nested too deep to be parsed"),
        (3, "invalid_json", "nested too deep to be parsed"),
    ]


def test_keys_without_end_take_bounded_memory_and_are_null_beyond_the_bound(tmp_path):
    lines = [{"id": place, "text": "t", "meta": {f"key{place}": place}} for place in range(2_000)]
    lines.append({"id": 2_000, "text": "t", "meta": {"key7": 7, "key8": 8}})
    corpus = CorpusSettings(uri=str(written(tmp_path, *lines)), keep=("meta",))
    columns = survey_files(list_files(corpus), corpus).columns
    assert count_leaves(columns.kept[0].type) == MAX_LEAVES
    batches = list(read_batches(list_files(corpus)[0], corpus, columns))
    good = [row for batch in batches for row in batch.good.to_pylist()]
    kept = [row["id"] for row in good if row["meta"] is not None]
    assert kept == [*range(MAX_LEAVES), 2_000]
    assert {name: value for name, value in good[-1]["meta"].items() if value is not None} == {
        "key7": 7,
        "key8": 8,
    }
    assert [row for batch in batches for row in batch.dropped] == list(range(MAX_LEAVES, 2_000))


def test_leaves_are_bounded_across_files(tmp_path):
    for name in "ab":
        meta = {f"{name}{place}": place for place in range(200)}
        written(tmp_path, {"id": name, "text": "t", "meta": meta}, name=f"{name}.jsonl")
    made = ingest(CorpusSettings(uri=str(tmp_path), keep=("meta",)), 10, open_store(tmp_path / "_out"))
    values = pq.read_table(tmp_path / "_out" / made.units[0].path)["meta"].to_pylist()
    assert (len(values[0]), values[1], made.counts["kept_values_dropped"]) == (200, None, 1)


def test_nested_key_in_a_later_block_is_kept(tmp_path):
    lines = [{"id": number, "text": "some text " * 20, "meta": {"a": number}} for number in range(12_000)]
    lines.append({"id": 12_000, "text": "t", "meta": {"b": "late"}})
    good, bad, _ = rows_of(written(tmp_path, *lines), CorpusSettings(keep=("meta",)))
    assert (len(good), bad) == (12_001, [])
    assert (good[0]["meta"], good[-1]["meta"]) == ({"a": 0, "b": None}, {"a": None, "b": "late"})


@pytest.mark.parametrize("keep", [(), ("note",)])
@pytest.mark.parametrize(("ids", "kind", "bad"), [
    (["id", 1, 2, -3], pa.int64(), {0: "id"}),
    (["a", "b", 3, True, 1.5, ["x"]], pa.string(), {2: "3", 3: "true", 4: "1.5", 5: '["x"]'}),
    ([1, 2, {"a": 1}, None], pa.int64(), {2: '{"a": 1}', 3: None}),
])  # fmt: skip
def test_row_with_an_id_of_another_type_is_quarantined(tmp_path, keep, ids, kind, bad):
    file = written(
        tmp_path, *({"id": one, "text": f"text {place}", "note": "n"} for place, one in enumerate(ids))
    )
    corpus = CorpusSettings(uri=str(file), keep=keep, max_quarantined=0.9)
    assert survey_files(list_files(corpus), corpus).columns.id == kind
    good, wrong, _ = rows_of(file, corpus)
    assert [row["id"] for row in good] == [one for place, one in enumerate(ids) if place not in bad]
    assert {row["row"]: row["id"] for row in wrong} == bad
    assert {(row["file"], row["reason"]) for row in wrong if row["id"]} == {("a.jsonl", "wrong_type")}
    made = ingest(corpus, 10, open_store(tmp_path / "out"))
    assert (made.counts["good"], made.counts["quarantined"]) == (len(ids) - len(bad), len(bad))


def test_kept_key_may_lack_in_some_files_but_not_in_all(tmp_path):
    written(tmp_path, {"id": 1, "text": "a"}, name="a.jsonl")
    written(tmp_path, {"id": 2, "text": "b", "note": "here"}, name="b.jsonl")
    made = ingest(CorpusSettings(uri=str(tmp_path), keep=("note",)), 10, open_store(tmp_path / "_out"))
    assert pq.read_table(tmp_path / "_out" / made.units[0].path)["note"].to_pylist() == [None, "here"]
    with pytest.raises(
        DataError, match=r"'nite' \(corpus.keep\), found the columns id, text.*set corpus.keep"
    ):
        ingest(CorpusSettings(uri=str(tmp_path), keep=("note", "nite")), 10, open_store(tmp_path / "_out"))
    pq.write_table(pa.table({"id": [3], "text": ["c"]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet.*'note' \(corpus.keep\)"):
        ingest(CorpusSettings(uri=str(tmp_path), keep=("note",)), 10, open_store(tmp_path / "_out"))


def test_lone_surrogates_of_a_rejected_row_are_replaced(tmp_path):
    file = written(
        tmp_path,
        b'{"id": "a", "text": "x"}',
        rb'{"id": 1.5, "text": "\ud800"}',
        rb'{"id": "\ud800", "text": 5}',
    )
    _, bad, _ = rows_of(file)
    assert [(row["id"], row["excerpt"]) for row in bad] == [("1.5", "\ufffd"), ("\ufffd", None)]
