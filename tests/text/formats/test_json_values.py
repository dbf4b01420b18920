"""Values of kept columns and ids of JSON lines keep their type, are widened, or become null."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.formats.reader import read_batches, survey_files
from pipeline.text.ingest.ingest import ingest
from pipeline.text.sources.sources import list_files
from tests.text.ingest.json_lines import rows_of, write_json_lines


def test_kept_values_keep_their_type_or_become_null(tmp_path):
    lines = [
        {"id": 1, "text": "a", "tags": ["x"], "price": 1},
        {"id": 2, "text": "b", "tags": None, "price": 2.5},
        {"id": 3, "text": "c", "tags": "y", "price": 3},
        {"id": 4, "text": "d"},
        {"id": 5, "text": "e", "tags": ["\ud800"], "price": "6"},
    ]
    corpus = CorpusSettings(uri=str(write_json_lines(tmp_path, *lines)), keep=("tags", "price", "text"))
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
    assert (bad, [batch.nulled for batch in batches]) == ([], [(2, 4, 4)])
    assert batches[0].head(3).nulled == (2,)


@pytest.mark.parametrize("nested", [False, True])
def test_an_integer_that_a_double_would_round_becomes_null(tmp_path, nested):
    numbers = [2**53, 2**53 + 1, -(2**53) - 1, 2**63, 18446744073709552000, 2**64 - 1, 10**400, 0.1, 1e300]
    lines = [
        {"id": number, "text": "a", "n": {"x": [value]} if nested else value}
        for number, value in enumerate(numbers)
    ]
    corpus = CorpusSettings(uri=str(write_json_lines(tmp_path, *lines)), keep=("n",))
    good, bad, _ = rows_of(tmp_path / "a.jsonl", corpus)
    kept = [float(2**53), None, None, float(2**63), float(2**64), None, None, 0.1, 1e300]
    assert bad == []
    assert [row["n"]["x"][0] if nested else row["n"] for row in good] == kept
    (batch,) = read_batches(list_files(corpus)[0], corpus)
    assert batch.nulled == (1, 2, 5, 6)


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
        write_json_lines(tmp_path, *lines, name=name), CorpusSettings(keep=("price", "note", "tags", "late"))
    )
    assert (len(good), bad) == (12_001, [])
    assert [good[row][column] for row in (0, -1) for column in ("price", "note", "tags", "late")] == [
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
        write_json_lines(tmp_path, {"id": name, "text": "t", "price": value}, name=name)
    store = open_store(tmp_path / "_out")
    ingested = ingest(CorpusSettings(uri=str(tmp_path), keep=("price",)), 10, store)
    assert pq.read_table(store.local(ingested.units[0].path))["price"].to_pylist() == [1.0, 2.5, None]
    assert (ingested.counts["good"], ingested.counts["kept_values_dropped"]) == (3, 1)


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
            uri=str(write_json_lines(tmp_path, *({"id": row_id, "text": "t"} for row_id in ids))), keep=keep
        )
        assert survey_files(list_files(corpus), corpus).columns.id == kind
        good, wrong, _ = rows_of(tmp_path / "a.jsonl", corpus)
        assert [row["id"] for row in good] == [row_id for row, row_id in enumerate(ids) if row not in bad]
        assert [row["row"] for row in wrong] == bad


@pytest.mark.parametrize(("small", "kind"), [(5, pa.uint64()), (-5, pa.int64())])
def test_files_agree_on_uint64_if_no_id_is_negative(tmp_path, small, kind):
    write_json_lines(tmp_path, {"id": small, "text": "t"}, name="a.jsonl")
    write_json_lines(tmp_path, {"id": 2**63, "text": "t"}, name="b.jsonl")
    for schema, name in ((pa.int32(), "c.parquet"), (pa.uint64(), "d.parquet")):
        pq.write_table(pa.table({"id": pa.array([7], schema), "text": ["t"]}), tmp_path / name)
    corpus = CorpusSettings(uri=str(tmp_path))
    files = list_files(corpus)
    assert survey_files(files, corpus).columns.id == kind
    assert survey_files([files[0], files[2]], corpus).columns.id == pa.int64()
    assert survey_files([files[1], files[2]], corpus).columns.id == pa.uint64()


def test_late_id_of_another_type_rejects_only_its_row(tmp_path):
    lines = [{"id": number, "text": "some text " * 20} for number in range(20_000)]
    good, bad, _ = rows_of(write_json_lines(tmp_path, *lines, {"id": "x", "text": "t"}))
    assert (len(good), [(row["row"], row["detail"]) for row in bad]) == (
        20_000,
        [(20_000, 'id is "x", not an id of type int64')],
    )


def test_nested_key_in_a_later_block_is_kept(tmp_path):
    lines = [{"id": number, "text": "some text " * 20, "meta": {"a": number}} for number in range(12_000)]
    lines.append({"id": 12_000, "text": "t", "meta": {"b": "late"}})
    good, bad, _ = rows_of(write_json_lines(tmp_path, *lines), CorpusSettings(keep=("meta",)))
    assert (len(good), bad) == (12_001, [])
    assert (good[0]["meta"], good[-1]["meta"]) == ({"a": 0, "b": None}, {"a": None, "b": "late"})


@pytest.mark.parametrize("keep", [(), ("note",)])
@pytest.mark.parametrize(("ids", "kind", "bad"), [
    (["id", 1, 2, -3], pa.int64(), {0: "id"}),
    (["a", "b", 3, True, 1.5, ["x"]], pa.string(), {2: "3", 3: "true", 4: "1.5", 5: '["x"]'}),
    ([1, 2, {"a": 1}, None], pa.int64(), {2: '{"a": 1}', 3: None}),
])  # fmt: skip
def test_row_with_an_id_of_another_type_is_quarantined(tmp_path, keep, ids, kind, bad):
    file = write_json_lines(
        tmp_path, *({"id": row_id, "text": f"text {row}", "note": "n"} for row, row_id in enumerate(ids))
    )
    corpus = CorpusSettings(uri=str(file), keep=keep, max_quarantined=0.9)
    assert survey_files(list_files(corpus), corpus).columns.id == kind
    good, wrong, _ = rows_of(file, corpus)
    assert [row["id"] for row in good] == [row_id for row, row_id in enumerate(ids) if row not in bad]
    assert {row["row"]: row["id"] for row in wrong} == bad
    assert {(row["file"], row["reason"]) for row in wrong if row["id"]} == {("a.jsonl", "wrong_type")}
    ingested = ingest(corpus, 10, open_store(tmp_path / "out"))
    assert (ingested.counts["good"], ingested.counts["quarantined"]) == (len(ids) - len(bad), len(bad))


def test_a_kept_key_may_be_missing_in_some_files_but_not_in_all(tmp_path):
    write_json_lines(tmp_path, {"id": 1, "text": "a"}, name="a.jsonl")
    write_json_lines(tmp_path, {"id": 2, "text": "b", "note": "here"}, name="b.jsonl")
    ingested = ingest(CorpusSettings(uri=str(tmp_path), keep=("note",)), 10, open_store(tmp_path / "_out"))
    assert pq.read_table(tmp_path / "_out" / ingested.units[0].path)["note"].to_pylist() == [None, "here"]
    with pytest.raises(
        DataError, match=r"'nite' \(corpus.keep\), found the columns id, text.*set corpus.keep"
    ):
        ingest(CorpusSettings(uri=str(tmp_path), keep=("note", "nite")), 10, open_store(tmp_path / "_out"))
    pq.write_table(pa.table({"id": [3], "text": ["c"]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet.*'note' \(corpus.keep\)"):
        ingest(CorpusSettings(uri=str(tmp_path), keep=("note",)), 10, open_store(tmp_path / "_out"))


@pytest.mark.parametrize("other", [1, 0.5, "yes", {}, {"a": 1}, [True], {"\ud800": 1}, {"a": {"\udc00": 1}}])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_boolean_and_any_other_value_in_one_column(tmp_path, other, is_first):
    """The type of the first value wins; the other one is null and counted."""
    values = [True, other] if is_first else [other, True]
    lines = [{"id": number, "text": "t", "kept": value} for number, value in enumerate([*values, None])]
    corpus = CorpusSettings(uri=str(write_json_lines(tmp_path, *lines)), keep=("kept",))
    store = open_store(tmp_path / "_out")
    ingested = ingest(corpus, 10, store)
    kept = pq.read_table(store.local(ingested.units[0].path))["kept"].to_pylist()
    is_storable = json.dumps(other).isascii() and "\\u" not in json.dumps(other) and other != {}
    expected = [True, None] if is_first or not is_storable else [other, None]
    assert kept == [*(expected if is_first or is_storable else reversed(expected)), None]
    assert ingested.counts["kept_values_dropped"] == 1


@pytest.mark.parametrize(
    ("values", "kept", "dropped"),
    [
        ([{}, None], [None, None], 1),
        ([[{}], [], None], [[None], [], None], 1),
        ([{"a": {}}, {"a": None}], [{"a": None}, {"a": None}], 1),
        (
            [{"a": {}, "b": 1}, {"a": {"c": 2}, "b": 3}],
            [{"a": {"c": None}, "b": 1}, {"a": {"c": 2}, "b": 3}],
            0,
        ),
        ([{"a": {}, "b": 1}, {"b": 2}], [{"a": None, "b": 1}, {"a": None, "b": 2}], 1),
        ([[None], []], [[None], []], 0),
    ],
)
def test_objects_without_keys_become_null_where_nothing_else_is_known_of_them(
    tmp_path, values, kept, dropped
):
    lines = [{"id": number, "text": "t", "kept": value} for number, value in enumerate(values)]
    store, folder = open_store(tmp_path / "_out"), write_json_lines(tmp_path, *lines)
    ingested = ingest(CorpusSettings(uri=str(folder), keep=("kept",)), 10, store)
    assert pq.read_table(store.local(ingested.units[0].path))["kept"].to_pylist() == kept
    assert ingested.counts.get("kept_values_dropped", 0) == dropped


def test_integers_outside_of_int64_become_null_and_a_warning_names_their_files(tmp_path, capsys):
    largest = 2**63 - 1
    for file, numbers in {"a": (largest, largest + 1), "b": (-(2**63), -(2**63) - 1), "c": (1, 2)}.items():
        lines = [{"id": f"{file}{number}", "text": "t", "kept": number} for number in numbers]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    store = open_store(tmp_path / "_out")
    ingested = ingest(CorpusSettings(uri=str(tmp_path), keep=("kept",)), 10, store)
    kept = pq.read_table(store.local(ingested.units[0].path))["kept"].to_pylist()
    assert kept == [largest, None, -(2**63), None, 1, 2]
    assert capsys.readouterr().err == (
        "warning: 2 files with 2 kept values that do not fit their column and became null: a.jsonl, b.jsonl\n"
    )


@pytest.mark.parametrize(
    "values", [({"a": 1}, {"a": "x", "b": 1}, {"b": 2}), ({f"k{n}": n for n in range(300)}, {"k1": 2})]
)
@pytest.mark.parametrize("apart", [True, False])
def test_no_key_of_an_object_is_left_out_without_being_counted(tmp_path, values, apart):
    """Types in one file, or in several, do not fit: an object with a key that the type lacks is null."""
    for number, value in enumerate(values):
        line = {"id": number, "text": "t", "kept": value}
        file = tmp_path / f"{number if apart else 0}.jsonl"
        file.write_text((file.read_text() if file.exists() else "") + json.dumps(line) + "\n")
    store = open_store(tmp_path / "_out")
    ingested = ingest(CorpusSettings(uri=str(tmp_path), keep=("kept",)), 10, store)
    kept = pq.read_table(store.local(ingested.units[0].path))["kept"].to_pylist()
    nulls = sum(value is None for value in kept)
    assert nulls == ingested.counts["kept_values_dropped"] > 0
    for value, stored in zip(values, kept, strict=True):
        assert stored is None or value == {key: each for key, each in stored.items() if each is not None}
