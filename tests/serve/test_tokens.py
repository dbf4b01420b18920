"""Requests find only rows that the filter of their token lets pass; tokens are changed without a restart."""

import hashlib
import html
import json
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.serve import tokens
from pipeline.serve.access import LIMITED_PATHS
from pipeline.serve.metrics import ServiceMetrics
from pipeline.serve.service import ServiceOptions
from pipeline.serve.tokens import AccessTokens, TokenFile, read_tokens
from pipeline.store.files.open_store import open_store
from tests.conftest import ROOT
from tests.index.published import Publisher, texts
from tests.models.folders import save_folder
from tests.serve.serving import Client, serving, wait_for_release, wait_until

ROWS = 240
TENANTS = ("acme", "zürich & co", "o'neil")
CORPUS = texts(ROWS)
OF_ROW = [TENANTS[number % 3] for number in range(ROWS)]
"""the tenant of each row"""


def entry(secret: str, where: str | None = None) -> dict[str, str]:
    """Return an entry of a file of tokens."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return {"sha256": digest} | ({} if where is None else {"where": where})


def where_of(tenant: str) -> str:
    return "tenant = '" + tenant.replace("'", "''") + "'"


ENTRIES: dict[str, Any] = {
    "all": entry("secret-all"),
    **{f"t{number}": entry(f"secret-{number}", where_of(name)) for number, name in enumerate(TENANTS)},
}


def write(file: Path, entries: dict[str, Any]) -> Path:
    """Write a file of tokens, readable by its owner."""
    file.write_text(json.dumps(entries))  # JSON is YAML
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tenants")


@pytest.fixture(scope="module")
def publish(folder: Path) -> Publisher:
    """Publishes rows of three tenants, with vectors in units, for searches near a row."""
    publisher = Publisher(open_store(folder / "root"), save_folder(folder / "bert", "bert"), folder)
    publisher.kept["tenant"] = pa.array(OF_ROW)
    publisher(CORPUS)
    return publisher


@pytest.fixture(scope="module")
def release(publish: Publisher) -> OpenRelease:
    return open_release(publish.store.uri)


@pytest.fixture(scope="module")
def client(publish: Publisher, folder: Path) -> Iterator[Client]:
    with serving(publish.store.uri, ServiceOptions(tokens=write(folder / "tokens.yaml", ENTRIES))) as client:
        yield client


def as_tenant(client: Client, number: int) -> Client:
    return Client(client.url, {"Authorization": f"Bearer secret-{number}"})


def tenant_of(row_id: str) -> str:
    return OF_ROW[int(row_id.removeprefix("row-"))]


LITERALS = st.one_of(
    st.sampled_from(["'acme'", "'o''neil'", "''", "'a%'", "1", "true", "null", "('acme', 'o''neil')"]),
    st.text("ab'\"%_()\\\n-;", max_size=6),
)
CONDITIONS = st.one_of(
    st.builds(
        "{} {} {}".format,
        st.sampled_from(["tenant", '"tenant"', "id", "length", "text", "lenght"]),
        st.sampled_from(["=", "!=", "<>", "<", ">=", "like", "not like", "in", "not in", "is", "is not"]),
        LITERALS,
    ),
    st.sampled_from(["tenant is null or tenant is not null", "length > 0", "1 = 1", "true", ""]),
)
FILTERS = st.one_of(
    st.recursive(
        CONDITIONS,
        lambda inner: st.one_of(
            inner.map("not {}".format),
            inner.map("({})".format),
            st.builds("{} or {}".format, inner, inner),
            st.builds("{} and {}".format, inner, inner),
            st.builds("{}) or ({}".format, inner, inner),
        ),
        max_leaves=5,
    ),
    st.text("()'\" ortenaci=%1-\\/*;\x00", max_size=30),
)


@settings(max_examples=150, deadline=None)
@given(
    number=st.integers(0, 2), where=st.none() | FILTERS, k=st.sampled_from([1, 7, 300]), texts=st.booleans()
)
def test_no_search_of_a_tenant_finds_a_row_outside_of_its_filter(
    client: Client, number: int, where: str | None, k: int, texts: bool
):
    body = {"queries": ["two dogs run", CORPUS[number]], "k": k, "where": where, "texts": texts}
    status, found = as_tenant(client, number).post("/search", body)
    assert status in (200, 400, 422), found
    for rows in found.get("answers", ()):
        assert {row["tenant"] for row in rows} <= {TENANTS[number]}
        if where is None:
            assert len(rows) == min(k, ROWS // 3), "it finds all of its own"


@settings(max_examples=80, deadline=None)
@given(
    number=st.integers(0, 2),
    where=FILTERS,
    near=st.none() | st.integers(0, ROWS + 5).map("row-{}".format) | st.text(max_size=5),
)
def test_no_page_of_a_tenant_shows_a_row_outside_of_its_filter(
    client: Client, number: int, where: str, near: str | None
):
    asked = {"near": near} if near else {"q": "a girl reads"}
    fields = urllib.parse.urlencode({**asked, "where": where, "k": 100})
    status, page = as_tenant(client, number).get(f"/?{fields}")
    assert status in (200, 400, 422, 503)
    shown = [html.unescape(each) for each in re.findall(r'<div class="id">(.*?)</div>', page)]
    assert {tenant_of(row_id) for row_id in shown} <= {TENANTS[number]}


def test_a_row_of_another_tenant_and_a_missing_one_give_the_same_error(client: Client):
    pages = []
    for row_id in ("row-1", "row-9999"):
        assert tenant_of("row-1") != TENANTS[0]
        status, page = as_tenant(client, 0).get(f"/?near={row_id}")
        assert status == 400
        pages.append(page.replace(row_id, "ID"))
    without_times = [re.sub(r"[\d.]+ m?s", "", page) for page in pages]
    assert without_times[0] == without_times[1]
    assert "a row with id" in pages[0]


def test_errors_show_no_value_of_a_filter(client: Client):
    for where in ("lenght < 3", "tenant = 5", "(", "tenant = 'acme", " or ".join(["length = 3"] * 1_000)):
        _, problem = as_tenant(client, 2).post("/search", {"queries": ["a"], "where": where})
        assert "neil" not in json.dumps(problem), where


def test_a_tenant_sees_the_release_without_counts_of_others(client: Client):
    release, everything = as_tenant(client, 0).json("/release"), as_tenant(client, -1)
    assert (release["rows"], release["gates"]) == (ROWS // 3, {})
    all_rows = Client(everything.url, {"Authorization": "Bearer secret-all"}).json("/release")["rows"]
    assert all_rows == ROWS
    page = as_tenant(client, 0).get("/")[1]
    assert "80 texts" in page
    assert "240" not in page
    assert "/map" not in page


def test_every_other_path_is_refused_to_a_tenant_and_shows_nothing(client: Client):
    """A new route is refused until somebody decides that it shows rows of the token alone."""
    paths = {"/metrics", "/map", "/map?colour=tenant", "/index.html", "/releases/1/report.html", "/nothing"}
    paths |= {"//search", "/search/", "/%6detrics", "/release/", "/./metrics"}
    for path in paths:
        status, body = as_tenant(client, 1).get(path)
        assert status == 403, path
        assert json.loads(body)["error"] == "Forbidden"
    schema = Client(client.url, {"Authorization": "Bearer secret-all"}).json("/openapi.json")
    assert LIMITED_PATHS - {"/", "/openapi.json"} <= set(schema["paths"])


def test_requests_are_counted_by_name(client: Client):
    as_tenant(client, 1).get("/map")
    metrics = Client(client.url, {"Authorization": "Bearer secret-all"}).get("/metrics")[1]
    assert 'manta_serve_token_requests_total{status="403",token="t1"}' in metrics
    assert "acme" not in metrics
    assert client.get("/metrics")[0] == 401


def test_the_tokens_are_replaced_without_a_restart_and_a_broken_file_keeps_them(
    publish: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tokens, "_POLL_S", 0.05)
    file = write(tmp_path / "tokens.yaml", {"old": entry("old"), "all": entry("secret-all")})
    with serving(publish.store.uri, ServiceOptions(tokens=file)) as client:

        def status(secret: str) -> int:
            return client.get("/release", Authorization=f"Bearer {secret}")[0]

        def metrics() -> str:
            return client.get("/metrics", Authorization="Bearer secret-all")[1]

        assert (status("old"), status("new")) == (200, 401)
        write(file, {"new": entry("new", where_of("acme")), "all": entry("secret-all")})
        wait_until(lambda: status("new") == 200)
        assert status("old") == 401
        assert 'token="old"' not in metrics()
        for broken in ("new: [", json.dumps({"new": entry("new", "tenent = 'acme'")}), "{}"):
            file.write_text(broken)
            wait_until(lambda: "manta_serve_tokens_refused 1.0" in metrics())
            assert (status("new"), status("old")) == (200, 401)
            write(file, {"new": entry("new"), "all": entry("secret-all")})
            wait_until(lambda: "manta_serve_tokens_refused 0.0" in metrics())
        file.unlink()
        wait_until(lambda: "manta_serve_tokens_refused 1.0" in metrics())
        assert status("new") == 200
    said = capsys.readouterr().err
    assert "2 tokens are in use; new: new; gone: old" in said
    assert said.count("the tokens of before stay in use") == 4


def test_a_release_without_the_column_of_a_filter_answers_only_tokens_without_it(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
):
    publisher = Publisher(open_store(tmp_path / "root"), folder / "bert", tmp_path)
    publisher.kept["tenant"] = pa.array(OF_ROW)
    publisher(CORPUS)
    options = ServiceOptions(poll_s=0.05, tokens=write(tmp_path / "tokens.yaml", ENTRIES))
    with serving(publisher.store.uri, options, Authorization="Bearer secret-all") as client:
        publisher.kept.clear()
        publisher(CORPUS[:50])
        wait_for_release(client, 2)
        assert client.post("/search", {"queries": ["a girl"]})[0] == 200
        for ask in (
            lambda c: c.post("/search", {"queries": ["a"]}),
            lambda c: c.get("/"),
            lambda c: c.get("/release"),
        ):
            status, problem = ask(as_tenant(client, 0))
            assert status == 503
            assert "acme" not in json.dumps(problem)
    assert "requests with the token t0 are refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, "1 to 1,000 tokens"),
        ({"a b": entry("x")}, "names of 1 to 64"),
        ({"a": "secret"}, "sha256: ..."),
        ({"a": {"token": "very-secret"}}, "printf %s SECRET | sha256sum"),
        ({"a": {"sha256": "very-secret"}}, "64 hexadecimal digits"),
        ({"a": entry("x") | {"wher": "length = 1"}}, "did you mean 'where'?"),
        ({"a": entry("x") | {"where": None}}, "only a token without the key finds all rows"),
        ({"a": entry("x", " ")}, "only a token without the key finds all rows"),
        ({"a": entry("x", "lenght = 1")}, "did you mean 'length'?"),
        ({"a": entry("x"), "b": entry("x")}, "the secret of a"),
        ({f"a{number}": entry(f"{number}") for number in range(1_001)}, "1,001"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained(
    release: OpenRelease, tmp_path: Path, entries: dict[str, Any], words: str
):
    with pytest.raises(ConfigError) as raised:
        read_tokens(write(tmp_path / "tokens.yaml", entries), release)
    assert words in str(raised.value)
    assert "very-secret" not in str(raised.value)


def test_the_documented_file_is_read(release: OpenRelease, tmp_path: Path):
    document = (ROOT / "infra" / "README.md").read_text("utf-8").split("### Tokens and tenants")[1]
    file = tmp_path / "tokens.yaml"
    file.write_text(document.split("```yaml\n")[1].split("```")[0])
    found = {token.name: token.where for token in read_tokens(file, release).values()}
    assert found == {"search-team": None, "acme": "tenant = 'acme'"}


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True), (0o660, True)])
def test_a_file_that_others_can_read_or_change_is_said(
    release: OpenRelease, tmp_path: Path, mode: int, warns: bool, capsys: pytest.CaptureFixture[str]
):
    file = write(tmp_path / "tokens.yaml", ENTRIES)
    file.chmod(mode)
    TokenFile(file, release, ServiceMetrics())
    assert ("chmod 600" in capsys.readouterr().err) == warns


def test_only_whole_secrets_are_found():
    table = AccessTokens.of("secret")
    assert table.find(b"secret") is not None
    for wrong in (b"", b"secre", b"secrets", b"Secret", hashlib.sha256(b"secret").hexdigest().encode()):
        assert table.find(wrong) is None


def test_a_limited_release_finds_counts_and_returns_only_its_rows(release: OpenRelease):
    release.encode(["loads the encoder"])
    limited = release.within(where_of("acme"))
    assert len(limited) == limited.count() == ROWS // 3
    assert limited.count("tenant = 'o''neil'") == 0
    assert limited.within("length > 0").within(where_of("o'neil")).count() == 0
    assert limited.get("row-0", texts=False)["tenant"] == "acme"
    for call in (limited.get, limited.vector):
        with pytest.raises(Exception, match="a row with id 'row-1', found none"):
            call("row-1")
    with pytest.raises(Exception, match="rows that pass its filter"):
        limited.rows(release.newest_rows(3))
    newest = limited.rows(limited.newest_rows(5))
    assert set(newest["tenant"].to_pylist()) == {"acme"}
    wanted = release.search("two dogs", 9, where=where_of("acme"))
    assert limited.search("two dogs", 9).equals(wanted)
    assert len(release) == ROWS, "the release itself is not limited"
