"""A service answers like the release itself, also while it swaps releases, and explains what it refuses."""

import base64
import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from pipeline.index.search.search import open_release
from pipeline.serve.messages import MAX_BODY_BYTES, SearchRequest
from pipeline.serve.service import ServiceOptions
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.conftest import ROOT
from tests.index.published import Publisher, texts
from tests.models.folders import save_folder
from tests.serve.serving import Client, serving, wait_for_release, wait_until

CORPUS = texts(330)
QUERIES = ["two dogs run near the river", "a girl reads", "Schnee am Fluss"]
FAST = ServiceOptions(poll_s=0.05)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of two encoders, whose spaces differ."""
    folder = tmp_path_factory.mktemp("encoders")
    return {kind: save_folder(folder / kind, kind) for kind in ("bert", "mpnet")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return open_store(tmp_path / "root")


@pytest.fixture
def publish(store: Store, folders: dict[str, Path], tmp_path: Path) -> Publisher:
    """Publishes corpora into the store."""
    return Publisher(store, folders["bert"], tmp_path)


@pytest.fixture
def client(publish: Publisher, store: Store) -> Iterator[Client]:
    """A client of a service over release 1."""
    publish(CORPUS)
    with serving(store.uri) as client:
        yield client


def expected(uri: str, queries: Any, k: int, **options: Any) -> list[list[dict[str, Any]]]:
    """Return the answers of the release itself, as JSON has them."""
    answers: list[list[dict[str, Any]]] = [[] for _ in queries]
    for row in open_release(uri).search(queries, k, **options).to_pylist():
        answers[row.pop("query")].append(row)
    return json.loads(json.dumps(answers))


@pytest.mark.parametrize("options", [{}, {"where": "length < 25 and id like 'row-1%'"}, {"texts": True}])
@pytest.mark.parametrize("k", [1, 7])
def test_answers_equal_those_of_the_release(client: Client, store: Store, k: int, options: dict[str, Any]):
    status, found = client.post("/search", {"queries": QUERIES, "k": k, **options})
    assert status == 200
    assert found["answers"] == expected(store.uri, QUERIES, k, **options)
    assert found["release"] == 1


def test_vectors_are_searched_if_they_are_of_the_release_s_space(client: Client, store: Store):
    vectors, space_id = open_release(store.uri).encode(QUERIES), client.json("/release")["space_id"]
    body = {"vectors": vectors.tolist(), "k": 4}
    status, found = client.post("/search", body | {"space_id": space_id})
    assert (status, found["answers"]) == (200, expected(store.uri, QUERIES, 4))
    status, found = client.post("/search", body | {"space_id": "another"})
    assert (status, found["error"]) == (409, "SpaceMismatch")
    status, _ = client.post("/search", body)
    assert status == 422, "vectors without a space may be of any"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "either queries or vectors"),
        ({"queries": ["a"], "vectors": [[1.0]], "space_id": ""}, 422, "either queries or vectors"),
        ({"queries": []}, 422, "queries"),
        ({"queries": ["a"] * 257}, 422, "256"),
        ({"queries": ["a"], "k": 0}, 422, "k"),
        ({"queries": ["a"], "k": True}, 422, "body.k: Input should be a valid integer, found true or false"),
        ({"queries": ["a"], "k": "5"}, 422, "body.k: Input should be a valid integer, found a string"),
        ({"queries": ["a"], "k": 5.0}, 422, "found a number with a fraction"),
        ({"queries": ["a"], "k": None}, 422, "body.k: Input should be a valid integer, found null"),
        ({"queries": ["a"], "texts": 1}, 422, "body.texts: Input should be a valid boolean"),
        ({"queries": ["a"], "group": "yes"}, 422, "body.group: Input should be a valid boolean"),
        ({"queries": ["a"], "where": 5}, 422, "body.where: Input should be a valid string"),
        ({"queries": ["a", 5]}, 422, "body.queries.1: Input should be a valid string, found a whole number"),
        ({"queries": ["a", ["b"]]}, 422, "body.queries.1: Input should be a valid string, found a list"),
        ({"queries": {"a": "b"}}, 422, "body.queries: Input should be a valid list, found an object"),
        ({"vectors": [["1"]], "space_id": "x"}, 422, "body.vectors.0.0: Input should be a valid number"),
        ({"vectors": [[True]], "space_id": "x"}, 422, "body.vectors.0.0: Input should be a valid number"),
        ({"queries": ["a"], "limit": 3}, 422, "limit"),
        ({"queries": ["a"] * 256, "k": 1_000}, 422, "25,600 answers"),
        ({"queries": ["a" * 20_001]}, 422, "20,000 characters"),
        ({"vectors": [[float("nan")]]}, 422, "need a space_id"),
        ({"queries": [" "]}, 400, "an empty query"),
        ({"queries": ["a dog"], "where": "lenght < 3"}, 400, "did you mean 'length'"),
        ({"queries": ["a dog"], "group": True}, 400, "whole texts"),
        ({"vectors": [[1.0], [1.0, 2.0]], "space_id": "SPACE"}, 400, "one length"),
        ({"vectors": [[0.0] * 48], "space_id": "SPACE"}, 400, "finite vectors"),
        ({"vectors": [[1e300] * 48], "space_id": "SPACE"}, 400, "finite vectors"),
        ({"vectors": [[1.0] * 3], "space_id": "SPACE"}, 400, "(q, 48)"),
    ],
)
def test_a_request_that_cannot_be_answered_is_explained(client: Client, body: Any, status: int, words: str):
    if body.get("space_id") == "SPACE":
        body = body | {"space_id": client.json("/release")["space_id"]}
    got, problem = client.post("/search", body)
    assert got == status
    assert words in json.dumps(problem)
    assert client.post("/search", {"queries": QUERIES})[0] == 200, "the service goes on"


def test_options_of_a_search_in_its_url_are_refused(client: Client):
    status, problem = client.post("/search?k=1", {"queries": QUERIES})
    assert status == 400
    assert "expected k in the body" in problem["message"]
    assert client.post("/search?trace=1", {"queries": QUERIES})[0] == 200, "other parameters are of proxies"


@pytest.mark.parametrize(
    "body",
    [
        {"vectors": [["a"] * 100_000], "space_id": "x"},
        {"vectors": [["a"]] * 200, "space_id": "x"},
        {"vectors": ["a"] * 100_000, "space_id": "x"},
        {"queries": [None] * 100_000},
        {f"key{number}": 1 for number in range(30_000)},
        {"k" * 1_000_000: 1},
    ],
    ids=("numbers", "vectors", "lists", "queries", "keys", "key"),
)
def test_a_body_with_many_faults_gets_one_short_sentence(client: Client, body: dict[str, Any]):
    with pytest.raises(ValidationError) as raised:
        SearchRequest.model_validate(body)
    assert raised.value.error_count() == 1, "each further error would take memory"
    status, problem = client.post("/search", body)
    assert status == 422
    assert len(problem["message"]) < 200


def test_a_vector_of_too_many_components_is_refused_before_it_is_searched(client: Client):
    body = {"vectors": [[1.0] * 65_537], "space_id": client.json("/release")["space_id"]}
    assert client.post("/search", body)[0] == 422


def test_concurrent_requests_get_the_answers_of_their_own_queries(client: Client, store: Store):
    corpus_queries = CORPUS[:60]
    wanted = expected(store.uri, corpus_queries, 3)

    def ask(number: int) -> Any:
        return client.post("/search", {"queries": [corpus_queries[number]], "k": 3})[1]["answers"][0]

    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(ask, range(60)))
    for mine, its in zip(found, wanted, strict=True):
        assert [row["id"] for row in mine] == [row["id"] for row in its]
        np.testing.assert_allclose([row["score"] for row in mine], [row["score"] for row in its], atol=1e-6)
    metrics = client.get("/metrics")[1]
    batches = float(metrics.split("manta_serve_batch_queries_count ")[1].split()[0])
    assert batches < 60, "requests that waited were answered together"
    assert 'manta_serve_requests_total{route="/search",status="200"} 60.0' in metrics


def test_swaps_under_load_give_no_failed_or_mixed_answer(publish: Publisher, store: Store):
    sizes = (330, 60, 200)
    publish(CORPUS)
    ids = {1: expected(store.uri, QUERIES, 5)}
    stop, answers = False, []
    with serving(store.uri, FAST) as client, ThreadPoolExecutor(4) as pool:

        def ask() -> None:
            while not stop:
                answers.append(client.post("/search", {"queries": QUERIES, "k": 5}))

        asking = [pool.submit(ask) for _ in range(4)]
        try:
            for number, size in enumerate(sizes[1:], 2):
                publish(CORPUS[:size])
                ids[number] = expected(store.uri, QUERIES, 5)
                wait_for_release(client, number)
            Releases(store).rollback(1)
            wait_for_release(client, 1)
        finally:
            stop = True
        for future in asking:
            future.result()
    assert {status for status, _ in answers} == {200}
    assert {found["release"] for _, found in answers} == {1, 2, 3}
    for _, found in answers:
        wanted = ids[found["release"]]
        assert [[row["id"] for row in rows] for rows in found["answers"]] == [
            [row["id"] for row in rows] for rows in wanted
        ]


def test_a_release_of_another_space_is_refused_until_it_is_wanted(
    publish: Publisher, store: Store, folders: dict[str, Path], tmp_path: Path
):
    publish(CORPUS)
    space_id = publish.encoder.space_id
    with serving(store.uri, FAST) as client:
        other = Publisher(store, folders["mpnet"], tmp_path)
        other.encoder_path = "encoders/other"
        other(CORPUS[:50])
        wait_until(lambda: client.json("/release")["refused"] == 2)
        release = client.json("/release")
        assert (release["release"], release["space_id"], release["rows"]) == (1, space_id, 330)
        assert "manta_serve_refused_release 2.0" in client.get("/metrics")[1]
        health = client.json("/healthz")
        assert (health["status"], health["refused_release"]) == ("ok", 2)
        assert client.post("/search", {"queries": QUERIES})[1]["release"] == 1
        publish(CORPUS[:100])
        wait_for_release(client, 3)
        assert client.json("/release")["refused"] is None
    Releases(store).rollback(1)
    with serving(store.uri, ServiceOptions(poll_s=0.05, same_space=False)) as client:
        Releases(store).rollback(2)
        wait_for_release(client, 2)
        body = {"vectors": [[1.0] * 48], "space_id": space_id}
        assert client.post("/search", body)[0] == 409, "vectors of the space of before are refused"
        assert client.post("/search", {"queries": QUERIES})[1]["release"] == 2


def test_a_damaged_new_release_leaves_the_old_one_in_service(
    publish: Publisher, store: Store, tmp_path: Path
):
    publish(CORPUS)
    with serving(store.uri, FAST) as client:
        damaged = publish(CORPUS[:200], kind="IVF1,Flat")
        file = Path(store.uri) / damaged.index.files[0].path
        content = file.read_bytes()
        file.write_bytes(content[:-1] + b"?")
        wait_until(lambda: "manta_serve_refresh_failures_total 0.0" not in client.get("/metrics")[1])
        assert client.post("/search", {"queries": QUERIES})[1]["release"] == 1
        file.write_bytes(content)
        wait_for_release(client, 2)


def test_a_root_that_is_gone_is_noticed_while_searches_are_answered(publish: Publisher, store: Store):
    """As after its disk was unmounted. What the service knows of the root becomes old."""
    publish(CORPUS)
    with serving(store.uri, FAST) as client:
        Path(store.uri).rename(f"{store.uri}-elsewhere")
        wait_until(lambda: "manta_serve_refresh_failures_total 0.0" not in client.get("/metrics")[1])
        wait_until(lambda: client.json("/healthz")["checked_s"] > 0.5)
        assert client.post("/search", {"queries": QUERIES})[1]["release"] == 1
        Path(f"{store.uri}-elsewhere").rename(store.uri)
        wait_until(lambda: client.json("/healthz")["checked_s"] < 0.5)


def test_every_path_but_the_health_check_needs_the_token(publish: Publisher, store: Store):
    publish(CORPUS)
    basic = base64.b64encode(b"anyone:secret").decode()
    with serving(store.uri, ServiceOptions(token="secret")) as client:
        assert client.get("/healthz")[0] == 200
        paths = ("/release", "/metrics", "/", "/map", "/index.html", "/openapi.json", "/nothing")
        assert {client.get(path)[0] for path in paths} == {401}
        assert client.post("/search", {"queries": QUERIES})[0] == 401
        for header in ("Bearer wrong", "Bearer", "secret", "Basic !", f"Bearer {basic}", "Bearer secretx"):
            assert client.get("/release", Authorization=header)[0] == 401, header
        for header in ("Bearer secret", f"Basic {basic}"):
            assert client.get("/release", Authorization=header)[0] == 200, header


def test_a_body_that_is_too_large_is_refused_before_it_is_read(client: Client):
    assert client.get("/search", **{"Content-Length": str(33 << 20)})[0] == 413


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "words"),
    [
        ("/search", b'{"queries": ["a"],}', {}, 422, "body.18: JSON decode error: trailing comma at line 1"),
        ("/search", b'{"queries": ["\\ud800"]}', {}, 422, "unexpected end of hex escape"),
        ("/search", b"{}", {"Content-Type": "text/plain"}, 422, "Type: expected application/json"),
        ("/search", iter([b" " * (MAX_BODY_BYTES + 1)]), {}, 413, "the body is too large: send fewer"),
        ("/nothing", b"{}", {}, 404, "Not Found"),
        ("/release", b"{}", {}, 405, "Method Not Allowed"),
    ],
    ids=("comma", "surrogate", "type", "chunked", "path", "method"),
)  # fmt: skip
def test_every_refusal_has_the_form_of_a_problem(client: Client, path, body, headers, status, words):
    headers = {"Content-Type": "application/json"} | headers
    request = urllib.request.Request(client.url + path, body, headers, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == status
    problem = json.load(refused.value)
    assert problem.keys() == {"error", "message"}
    assert words in problem["message"]


def test_a_filter_of_bounded_length_is_evaluated_or_refused(client: Client):
    """These would have taken minutes for each 100,000 rows."""
    for where, status in (
        (" or ".join(["text like '%a%b%'"] * 800), 200),
        (f"text like '%a{'_' * 90}b%'", 200),
        (" or ".join(f"text like '%a{'_' * 30}{number}%'" for number in range(300)), 400),
        (f"text like '{'%_a' * 6_000}'", 400),
        (" or ".join(["length = 3"] * 1_200), 400),
    ):
        assert client.post("/search", {"queries": ["a dog"], "where": where})[0] == status, where[:80]


def test_a_client_that_gives_up_is_counted_apart_from_failures(client: Client):
    host, port = client.url.removeprefix("http://").split(":")
    body = json.dumps({"queries": CORPUS[:256]}).encode()
    headers = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}")
    head = "\r\n".join(("POST /search HTTP/1.1", *headers, "", "")).encode()

    def give_up() -> bool:
        for _ in range(8):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(head + body)
        return 'route="/search",status="499"' in client.get("/metrics")[1]

    wait_until(give_up)
    assert 'status="500"' not in client.get("/metrics")[1]


def test_the_documented_request_is_answered(client: Client):
    command = "curl" + (ROOT / "infra" / "README.md").read_text("utf-8").split("\ncurl")[1].split("```")[0]
    assert "http://127.0.0.1:8000/" in command
    command = command.replace("http://127.0.0.1:8000", client.url)
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(ended.stdout)["answers"] == [[]], "no id of this corpus is like posixpath.%"


def test_without_a_token_only_this_machine_s_names_are_answered(client: Client):
    for host, status in (("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:80", 200), ("evil.example", 400)):
        assert client.get("/release", Host=host)[0] == status, host


@pytest.mark.parametrize("path", ["/?q=a&where=length%20%3C%203", "/search", "/release", "/healthz", "/map"])
def test_without_a_token_requests_that_pages_of_other_sites_cause_are_refused(client: Client, path: str):
    own = f"http://localhost:{client.url.rpartition(':')[2]}"
    for headers, is_refused in (
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, True),
        ({"Origin": "https://evil.example"}, True),
        ({"Origin": "http://127.0.0.1.evil.example"}, True),
        ({"Origin": "null"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": own}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": "http://[::1]:8000"}, False),
    ):
        status, text = client.get(path, **headers)
        assert (status == 403) == is_refused, headers
        assert ("cross-site" in text) == is_refused


def test_with_a_token_the_site_of_a_request_does_not_matter(publish: Publisher, store: Store):
    publish(CORPUS)
    with serving(store.uri, ServiceOptions(token="secret"), Authorization="Bearer secret") as client:
        assert client.get("/release", Origin="https://tools.example")[0] == 200


def test_without_a_token_the_names_that_it_listens_on_are_answered_too(publish: Publisher, store: Store):
    publish(CORPUS)
    with serving(store.uri, ServiceOptions(hosts=("Desk.example", "127.0.0.2", "::2"))) as client:
        for host in ("desk.example:80", "127.0.0.2:8000", "127.0.0.1", "localhost", "[::2]:8000", "[::2]"):
            assert client.get("/release", Host=host)[0] == 200, host
        for host in ("evil.example", "127.0.0.3", "[::3]"):
            assert client.get("/release", Host=host)[0] == 400, host


def test_openapi_describes_the_search(client: Client):
    schema = client.json("/openapi.json")
    assert {"/search", "/healthz", "/release", "/metrics"} <= set(schema["paths"])
    request = schema["components"]["schemas"]["SearchRequest"]["properties"]
    assert {"queries", "vectors", "space_id", "k", "where", "group", "texts"} == set(request)
