"""A published release answers as exact search does, and refuses other spaces and changed bytes."""

import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import pipeline
from pipeline.errors import ConfigError, DataError, QueryError, SpaceMismatch
from pipeline.index.files.ids import Ids
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import EncoderFiles, ReleaseManifest
from pipeline.store.releases.release import Releases
from tests.index.clustered import Map, cosines
from tests.index.published import Publisher, open_encoder, texts
from tests.models.folders import save_folder

CORPUS = texts(330)
QUERIES = ["two dogs run near the river", "a girl reads", "Schnee am Fluss"]
WHITENING = Map(
    np.random.default_rng(3).normal(size=(40, 48)).astype(np.float32), np.full(40, 0.1, dtype=np.float32)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of an encoder."""
    return save_folder(tmp_path_factory.mktemp("encoder") / "bert", "bert")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return open_store(tmp_path / "root")


@pytest.fixture
def publish(store: Store, folder: Path, tmp_path: Path) -> Publisher:
    """Publishes corpora into the store."""
    return Publisher(store, folder, tmp_path)


def exact_ids(
    publisher: Publisher, queries: list[str], corpus: list[str], k: int, transform: Map | None = None
) -> list[list[str]]:
    """Return the ids of the nearest rows by exact search."""
    scores = cosines(publisher.encoder.encode(queries), publisher.encoder.encode(corpus), transform)
    return [[f"row-{row}" for row in np.argsort(-row_scores, kind="stable")[:k]] for row_scores in scores]


def ids_by_query(found: pa.Table) -> list[list[object]]:
    """Return the ids of the answers to each query."""
    rows = found.to_pylist()
    return [
        [row["id"] for row in rows if row["query"] == query]
        for query in sorted({row["query"] for row in rows})
    ]


@pytest.mark.parametrize("transform", [None, WHITENING])
@pytest.mark.parametrize(
    ("kind", "on_disk"), [("flat", "auto"), ("IVF1,Flat", "auto"), ("ivf_flat", "always"), ("hnsw", "auto")]
)
def test_a_search_for_texts_equals_exact_search(publish, store, kind, on_disk, transform):
    corpus = list(dict.fromkeys(CORPUS))
    publish(corpus, transform=transform, kind=kind, on_disk=on_disk)
    release = open_release(store.uri)
    found = release.search(QUERIES, 5)
    if kind != "ivf_flat":  # ivf_flat visits one of eight lists
        assert ids_by_query(found) == exact_ids(publish, QUERIES, corpus, 5, transform)
    assert found.schema.names == ["query", "rank", "id", "score", "text", "length"]
    assert [found.schema.field(name).type for name in ("query", "rank", "score")] == [
        pa.int32(),
        pa.int32(),
        pa.float32(),
    ]
    assert found["rank"].to_pylist() == 3 * [1, 2, 3, 4, 5]
    assert all(row["text"] == corpus[int(row["id"].removeprefix("row-"))] for row in found.to_pylist())
    expected = cosines(publish.encoder.encode(QUERIES), publish.encoder.encode(corpus), transform)
    for row in found.to_pylist():
        assert row["score"] == pytest.approx(
            expected[row["query"], int(row["id"].removeprefix("row-"))], abs=2e-5
        )


def test_vectors_and_texts_give_the_same_answers(publish, store):
    publish(CORPUS, ids="int")
    release = open_release(store.uri)
    by_text = release.search(QUERIES, 4)
    by_vector = release.search(release.encode(QUERIES), 4, space_id=release.space_id)
    assert by_text.equals(by_vector)
    assert by_text.schema.field("id").type == pa.int64()
    assert release.search(QUERIES[0], 4)["id"].to_pylist() == by_text["id"].to_pylist()[:4]


def test_queries_are_normalized_like_the_corpus(publish, store):
    publish(CORPUS)
    release = open_release(store.uri)
    assert release.search("  two dogs\t\n")["id"].equals(release.search("two dogs")["id"])
    assert release.search("two \ud800 dogs").num_rows == 10


def test_k_above_the_number_of_rows_returns_all_rows(publish, store):
    publish(CORPUS[:7])
    release = open_release(store.uri)
    assert release.search(QUERIES, 50).num_rows == 3 * 7
    assert len(release) == 7
    assert release.search([], 5).num_rows == 0
    assert release.search(np.zeros((0, 48), dtype=np.float32)).schema.names[:4] == [
        "query",
        "rank",
        "id",
        "score",
    ]


def test_vectors_of_another_space_are_refused_naming_both_spaces(publish, store):
    publish(CORPUS)
    release = open_release(store.uri)
    with pytest.raises(SpaceMismatch, match=f"{release.space_id}.*found space abc"):
        release.search(np.ones((1, 48), dtype=np.float32), space_id="abc")


@pytest.mark.parametrize(
    "queries",
    [
        np.ones((2, 47), np.float32),
        np.ones(47, np.float32),
        np.full((1, 48), np.nan, np.float32),
        np.zeros((1, 48), np.float32),
        np.full((1, 48), 1e30, np.float32),  # the squared length is infinite in float32
        np.full((1, 48), 1e-30, np.float32),
        np.ones((1, 48), np.complex64),
        [[1.0] * 48],
        ["two dogs run", None],
    ],
)
def test_unusable_vectors_are_refused(publish, store, queries):
    publish(CORPUS)
    with pytest.raises(DataError, match="search"):
        open_release(store.uri).search(queries)


def test_k_is_a_whole_number_above_zero(publish, store):
    publish(CORPUS)
    release = open_release(store.uri)
    for k in (0, -1, 2.0, "3", np.int64(0)):
        with pytest.raises(ConfigError, match="a whole number, at least 1, found"):
            release.search("x", k)
    assert release.search("x", np.int64(3)).equals(release.search("x", 3))


def test_an_empty_text_is_named_by_its_number(publish, store):
    publish(CORPUS)
    with pytest.raises(ConfigError, match="found an empty text in query 1;"):
        open_release(store.uri).search(["two dogs run", " ", ""])


def test_a_root_without_releases_is_refused(store):
    with pytest.raises(DataError, match="a published release"):
        pipeline.open_release(store.uri)
    with pytest.raises(DataError, match="release 3"):
        open_release(store.uri, 3)


def change_a_byte(store: Store, reference: FileRef) -> None:
    """Change one byte of a file."""
    content = bytearray(store.read(reference.path))
    content[len(content) // 2] ^= 1
    store.write(reference.path, bytes(content))


@pytest.mark.parametrize("file", ["index", "ids"])
def test_a_changed_file_is_refused_on_opening(publish, store, file):
    manifest = publish(CORPUS)
    reference = manifest.index.files[0] if file == "index" else manifest.ids[0]
    change_a_byte(store, reference)
    with pytest.raises(DataError, match=f"{reference.path}: expected sha256 {reference.sha256[:16]}"):
        open_release(store.uri)


def test_a_missing_file_is_named(publish, store):
    manifest = publish(CORPUS)
    store.delete(manifest.ids[0].path)
    with pytest.raises(DataError, match=f"{manifest.ids[0].path}: expected a file of the release"):
        open_release(store.uri)


def test_changed_weights_are_refused_before_the_first_query(publish, store):
    publish(CORPUS)
    change_a_byte(store, FileRef(path="encoders/e/model.safetensors", sha256=""))
    with pytest.raises(DataError, match=r"model\.safetensors: expected sha256"):
        open_release(store.uri).search("x")


def republish(publisher: Publisher, manifest: ReleaseManifest, **changes: object) -> ReleaseManifest:
    """Publish a release again with other values in its manifest."""
    candidate = manifest.model_copy(update={"parent": manifest.release, "release": 0, **changes})
    return Releases(publisher.store).publish(candidate, str)


def test_an_encoder_of_another_space_is_refused_naming_both_spaces(publish, store):
    manifest = publish(CORPUS)
    republish(publish, manifest, space_id="f" * 64)
    with pytest.raises(SpaceMismatch, match=f"expected space f+, found space {manifest.space_id}"):
        open_release(store.uri).search("x")


def test_file_names_outside_the_folder_are_refused(publish, store, monkeypatch):
    manifest = publish(CORPUS)
    outside = EncoderFiles(path="encoders/e", files=(FileRef(path="../../etc/passwd", sha256="0"),))
    with pytest.raises(DataError, match="a relative path below the root"):
        republish(publish, manifest, encoder=outside)
    monkeypatch.setattr("pipeline.store.releases.release.Releases._check_publishable", lambda *_: None)
    republish(publish, manifest, encoder=outside)
    with pytest.raises(DataError, match="a relative path below the root"):
        open_release(store.uri).search("x")


def test_changed_tombstones_are_refused(publish, store):
    """A dead row that is found, or a live one that is hidden, is as bad as a changed vector."""
    manifest = publish.with_delta(CORPUS, base=300, dead=[0, 1, 2])
    change_a_byte(store, manifest.tombstones)
    with pytest.raises(DataError, match=f"{manifest.tombstones.path}: expected sha256"):
        open_release(store.uri)


def test_an_index_with_too_many_rows_is_refused(publish, store):
    manifest = publish(CORPUS)
    republish(publish, manifest, rows=329)
    with pytest.raises(DataError, match="329 live rows, found 330"):
        open_release(store.uri)


def test_refresh_switches_to_the_current_release(publish, store):
    publish(CORPUS[:100])
    following, pinned = open_release(store.uri), open_release(store.uri, 1)
    following.encode(["load it"])
    encoder = following._files._encoder
    assert not following.refresh()
    publish(CORPUS)
    assert (following.refresh(), pinned.refresh()) == (True, False)
    assert (following.number, len(following), pinned.number, len(pinned)) == (2, 330, 1, 100)
    assert encoder is not None
    assert following._files._encoder is encoder
    Releases(store).rollback(1)
    assert following.refresh()
    assert (following.number, len(following)) == (1, 100)
    assert following.search(QUERIES, 3).equals(pinned.search(QUERIES, 3))


def test_base_delta_and_tombstones_answer_like_one_index_of_live_rows(publish, store, folder, tmp_path):
    dead = [*range(0, 300, 2), 329]
    publish.with_delta(CORPUS, base=300, dead=dead)
    with_delta = open_release(store.uri)
    (tmp_path / "other").mkdir()
    whole = Publisher(open_store(tmp_path / "other"), folder, tmp_path)
    whole.without(CORPUS, dead)
    of_live_rows = open_release(tmp_path / "other")
    for k in (1, 10, 179, 500):
        left, right = with_delta.search(QUERIES, k), of_live_rows.search(QUERIES, k)
        assert left.num_rows == right.num_rows == 3 * min(k, 330 - len(dead))
        np.testing.assert_allclose(left["score"], right["score"], atol=1e-6)
        assert set(left["id"].to_pylist()).isdisjoint(f"row-{row}" for row in dead)


@pytest.mark.parametrize("index", [{"kind": "flat"}, {"kind": "IVF4,Flat", "on_disk": "always"}])
def test_a_release_in_an_object_store_is_searched_through_local_copies(
    s3, folder, tmp_path, monkeypatch, index
):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    uri = f"{s3}/search-{index['kind'][:3].lower()}"
    publisher = Publisher(open_store(uri), folder, tmp_path)
    publisher(CORPUS, **index)
    local = Publisher(open_store(tmp_path / "root"), folder, tmp_path)
    local(CORPUS, **index)
    assert open_release(uri).search(QUERIES, 5).equals(open_release(tmp_path / "root").search(QUERIES, 5))


def test_opening_loads_no_torch(publish, store):
    publish(CORPUS)
    code = (
        f"import sys, pipeline; release = pipeline.open_release({store.uri!r}); print(len(release), "
        "'torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "330 False\n"
    )


def test_texts_are_encoded_by_the_encoder_of_the_release(publish, store, folder):
    publish(CORPUS)
    np.testing.assert_allclose(
        open_release(store.uri).encode(QUERIES), open_encoder(folder).encode(QUERIES), atol=1e-5
    )


@pytest.mark.parametrize("kind", ["flat", "IVF4,SQ8", "hnsw"])
def test_filtered_answers_equal_exact_search_of_the_passing_rows(publish, store, kind):
    corpus = list(dict.fromkeys(CORPUS))
    publish.in_units = True
    publish(corpus, kind=kind)
    release = open_release(store.uri)
    for where, passes in {
        "length < 20": lambda row: len(corpus[row]) < 20,
        "length >= 40 or id = 'row-3'": lambda row: len(corpus[row]) >= 40 or row == 3,
        "id in ('row-5', 'row-7', 'no row')": lambda row: row in (5, 7),
        "length is null": lambda row: False,
        "not length is null": lambda row: True,
    }.items():
        rows = [row for row in range(len(corpus)) if passes(row)]
        nearest = exact_ids(publish, QUERIES, [corpus[row] for row in rows], 10)
        expected = [[f"row-{rows[int(name.removeprefix('row-'))]}" for name in names] for names in nearest]
        found = release.search(QUERIES, 10, where=where)
        assert release.count(where) == len(rows)
        assert found.num_rows == 3 * min(10, len(rows))
        if kind != "IVF4,SQ8":  # its codes may swap neighbours
            assert ids_by_query(found) == (expected if rows else [])
        assert release.search(QUERIES, 10, where=where).equals(found)


def test_the_same_filter_is_evaluated_once(publish, store, monkeypatch):
    publish(CORPUS)
    release, evaluated = open_release(store.uri), []
    matching = Ids.matching
    monkeypatch.setattr(
        Ids, "matching", lambda self, *given: evaluated.append(given) or matching(self, *given)
    )
    for number in (1, 2, 1, 2):
        release.search(QUERIES, 3, where=f"length < {10 * number}")
    assert len(evaluated) == 2
    for number in range(30, 130):
        release.count(f"length < {number}")
    assert len(evaluated) == 102
    assert len(release._files.filters._kept) <= 16


def test_a_filter_leaves_out_dead_rows(publish, store):
    dead = [*range(0, 300, 2), 329]
    publish.with_delta(CORPUS, base=300, dead=dead)
    release = open_release(store.uri)
    assert release.count("id is not null") == 330 - len(dead)
    assert release.count("id in ('row-301', 'row-1', 'row-2', 'row-329')") == 2


def test_a_filter_of_the_previous_release_is_evaluated_again_after_a_refresh(publish, store):
    publish(CORPUS[:100])
    release = open_release(store.uri)
    assert release.count("id >= ''") == 100
    publish(CORPUS)
    assert release.refresh()
    assert release.count("id >= ''") == 330


def test_an_invalid_filter_is_refused_before_the_encoder_is_loaded(publish, store):
    publish(CORPUS)
    release = open_release(store.uri)
    with pytest.raises(ConfigError, match=r"where, position 1: .* found 'lenght'; did you mean 'length'"):
        release.search(QUERIES, where="lenght < 3")
    assert release._files._encoder is None


TABLES = {
    "DataFrame": pd.DataFrame({"text": ["two dogs"]}),
    "Table": pa.table({"text": ["two dogs"]}),
    "RecordBatch": pa.record_batch({"text": ["two dogs"]}),
    "dict": {"text": "two dogs"},
}


@pytest.mark.parametrize(
    "queries",
    [*TABLES.values(), None, 5, b"two dogs", {"a", "b"}, np.array("a dog")],
    ids=lambda each: type(each).__name__,
)
def test_queries_that_are_no_sequence_of_texts_are_refused_with_a_sentence(publish, store, queries):
    publish(texts(20))
    found = type(queries).__name__
    with pytest.raises(TypeError, match=f"a sequence of strings, or a NumPy array of vectors, found {found}"):
        open_release(store.uri).search(queries)


@pytest.mark.parametrize("batch", TABLES.values(), ids=TABLES)
def test_tables_are_not_encoded_as_the_names_of_their_columns(publish, batch):
    with pytest.raises(TypeError, match=rf"found {type(batch).__name__}; give one of its columns"):
        publish.encoder.encode(batch)


@pytest.mark.parametrize("where", [5, ["length < 3"], b"length < 3"], ids=repr)
def test_a_filter_that_is_no_text_is_refused_with_a_sentence(publish, store, where):
    publish(texts(20))
    with pytest.raises(TypeError, match="where: expected a text like 'price < 10', found"):
        open_release(store.uri).search("two dogs", where=where)


def test_one_vector_is_a_query_and_so_are_texts_in_an_array(publish, store):
    publish(texts(20))
    release = open_release(store.uri)
    [vector] = release.encode(["two dogs"])
    expected = release.search("two dogs").to_pylist()
    for queries in (
        vector,
        vector[None],
        np.array(["two dogs"]),
        np.array(["two dogs"], object),
        pd.Series(["two dogs"]),
    ):
        assert [row["id"] for row in release.search(queries).to_pylist()] == [row["id"] for row in expected]


def test_the_options_of_a_search_have_a_signature(publish, store):
    assert {"texts", "where", "group"} <= set(inspect.signature(OpenRelease.search).parameters)
    publish(texts(20))
    with pytest.raises(TypeError, match="unexpected keyword argument 'wher'"):
        open_release(store.uri).search("two dogs", wher="length < 3")


@pytest.mark.parametrize("ids", ["string", "int"])
def test_a_row_is_found_by_its_id(publish, store, ids):
    corpus = texts(60)
    publish(corpus, ids=ids)
    release = open_release(store.uri)
    for row in (0, 59):
        row_id = row if ids == "int" else f"row-{row}"
        assert release.get(row_id) == {"id": row_id, "text": corpus[row], "length": len(corpus[row])}
    with pytest.raises(QueryError, match="a row with id 99, found none"):
        release.get(99)


def test_a_deleted_row_is_not_found(publish, store):
    publish.with_delta(texts(60), base=40, dead=[3, 50])
    with pytest.raises(QueryError, match="a row with id 'row-50', found none"):
        open_release(store.uri).get("row-50")


def test_the_text_of_a_row_comes_from_the_units(publish, store):
    publish.in_units, corpus = True, texts(60)
    publish(corpus)
    release = open_release(store.uri)
    assert release.get("row-7") == {"id": "row-7", "text": corpus[7], "length": len(corpus[7])}
    assert release.get("row-7", texts=False) == {"id": "row-7", "length": len(corpus[7])}


def test_a_release_is_closed_at_the_end_of_its_block(publish, store):
    publish(texts(20))
    with open_release(store.uri) as release:
        assert release.search("two dogs", 1).num_rows == 1
    assert repr(release) == f"OpenRelease({store.uri!r}, closed)"
    for use in (lambda: release.search("two dogs"), lambda: len(release), lambda: release.get("row-1")):
        with pytest.raises(ValueError, match="the release is closed"):
            use()
