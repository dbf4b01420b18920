"""Names and addresses that a target cannot have are mistakes of the command line, with exit code 2."""

import contextlib
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, TransientError
from pipeline.targets.target import TARGETS

MODULES = {
    "qdrant": "qdrant_client",
    "milvus": "pymilvus",
    "opensearch": "opensearchpy",
    "pgvector": "psycopg",
}
NAMES = {
    "lancedb": ["my docs", "a/b", "\u6587", "manta_positions", 300 * "a"],
    "parquet": ["../docs", "/docs", "docs/.hidden", "docs//a", "docs/"],
    "qdrant": ["a/b", "a:b", "../docs"],
    "milvus": ["a/b", "../docs"],
    "opensearch": ["Docs", "my docs", "docs*", "_all", "a,b", "-docs", ".docs"],
    "elasticsearch": ["docs*", "_all"],
    "pgvector": ["a\0b", "manta_positions"],
}
URIS = {
    "elasticsearch": "http://host:9200",
    "opensearch": "http://host:9200",
    "pgvector": "postgresql://host/db",
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in NAMES for name in ["", *NAMES[kind]]])
def test_an_invalid_name_is_refused_before_anything_is_written(kind: str, name: str, tmp_path: Path):
    if kind != "parquet":
        pytest.importorskip(MODULES.get(kind, kind))
    with pytest.raises(ConfigError, match=r"--name: expected .*choose another --name") as caught:
        TARGETS[kind](URIS.get(kind, str(tmp_path / "rows.db")), name)
    assert caught.value.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "uri", "words"),
    [
        ("lancedb", "bogus://x", "No object store provider"),
        ("elasticsearch", "http://host", "must include a 'scheme', 'host', and 'port'"),
        ("opensearch", "http://host:port", "Port could not be cast"),
        ("qdrant", "ftp://host", "Unknown scheme: ftp"),
        *(
            ("qdrant", host, r"found a host without http:// .*, or \./.* for a folder")
            for host in ("localhost", "LocalHost", "db:6333", "10.0.0.5", "[::1]:6333", "db.example.com:80")
        ),
        ("milvus", "folder", "needs start with"),
        ("opensearch", "", "expected the address of a server, or a folder, found an empty text"),
    ],
)
def test_an_invalid_address_is_shown_with_the_reason(kind: str, uri: str, words: str):
    pytest.importorskip(MODULES.get(kind, kind))
    with pytest.raises(ConfigError, match=words) as caught:
        TARGETS[kind](uri, "docs")
    assert uri in str(caught.value)


def test_a_parameter_that_the_server_of_milvus_refuses_is_a_mistake_of_the_user(tmp_path: Path):
    pytest.importorskip("milvus_lite")
    errors = pytest.importorskip("pymilvus").exceptions
    with contextlib.closing(TARGETS["milvus"](str(tmp_path / "rows.db"), "docs")) as target:
        refused = target.explain(errors.MilvusException(1_100, "Invalid collection name: my-docs"))
        failed = target.explain(errors.MilvusException(2, "Fail connecting to server"))
    assert isinstance(refused, ConfigError)
    assert isinstance(failed, TransientError)
