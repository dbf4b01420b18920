"""The page shows answers, neighbours and a map of a release, and runs nothing of a corpus."""

import html
import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.filter import selection
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from tests.flows.conftest import sentences
from tests.serve.serving import Client, serving, wait_until

TEXTS = [*sentences(300, seed=3), "<script>alert('corpus')</script> a man reads a book on the grass"]
SCRIPT_ID = "<b>/&?#'"
SLOW_UMAP = """
from threading import Event

calls, may_end = [], Event()


class UMAP:
    def __init__(self, *arguments, **options):
        pass

    def fit_transform(self, vectors):
        calls.append(len(vectors))
        assert may_end.wait(60)
        if len(calls) == 1:
            raise ArithmeticError("the first drawing fails")
        return vectors[:, :2]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, encoder: Path, child: LocalWorkers) -> str:
    """The root of a release with columns of languages, lengths and times, some rows of which died."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "corpus").mkdir()
    ids = [*(f"row-{number}" for number in range(300)), SCRIPT_ID]
    overrides = (
        f"corpus.uri={folder}/corpus",
        "corpus.keep=[lang, length, until]",
        f"encoder.path={encoder}",
        "index.kind=SQ8",
        "whiten.mode=off",
        "gates.max_deleted=0.4",
        f"release.root={folder}/releases",
    )
    job = load_settings(Job, None, overrides)
    for rows in (len(ids), 200):
        table = pa.table(
            {
                "id": ids[-rows:],
                "text": TEXTS[-rows:],
                "lang": [("en", "de", None)[number % 3] for number in range(rows)],
                "length": [len(text) for text in TEXTS[-rows:]],
                "until": pa.array(rows * [253_402_300_800_000], pa.timestamp("ms")),
            }
        )
        pq.write_table(table, folder / "corpus" / "a.parquet")
        with connect(ClusterSettings(), Stages(), local=child):
            assert nightly(job, Stages()).status == "published"
    return f"{folder}/releases"


@pytest.fixture(scope="module")
def client(root: str) -> Iterator[Client]:
    """A client of a service over the root."""
    with serving(root) as client:
        yield client


@pytest.fixture(scope="module")
def release(root: str) -> OpenRelease:
    """The open release."""
    return open_release(root)


def shown_ids(page: str) -> list[str]:
    """Return the ids of the answers on a page."""
    return [html.unescape(found) for found in re.findall(r'<div class="id">(.*?)</div>', page)]


@pytest.mark.parametrize("where", [None, "lang = 'de' and length > 40"])
def test_a_search_shows_the_answers_of_the_release(client: Client, release: OpenRelease, where: str | None):
    fields = {"q": "a man reads", "k": "5"} | ({"where": where} if where else {})
    status, page = client.get(f"/?{urllib.parse.urlencode(fields)}")
    assert status == 200
    assert shown_ids(page) == release.search("a man reads", 5, where=where)["id"].to_pylist()


def test_rows_near_a_row_are_those_near_its_vector(client: Client, release: OpenRelease):
    for row_id in ("row-250", SCRIPT_ID):
        status, page = client.get(f"/?near={urllib.parse.quote(row_id, safe='')}&k=4")
        assert status == 200
        wanted = release.search(release.vector(row_id)[None], 4)["id"].to_pylist()
        assert shown_ids(page) == wanted
        assert wanted[0] == row_id


def test_the_vector_of_a_row_is_that_of_its_text(root: str, monkeypatch: pytest.MonkeyPatch):
    """The limit of the units that a filter reads is not one of their size: a unit may exceed it."""
    monkeypatch.setattr(selection, "MAX_READ_BYTES", 0)
    release = open_release(root)
    vector = release.encode([TEXTS[250]])[0]
    assert release.vector("row-250") == pytest.approx(vector, abs=1e-6)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("near=row-3", "a row with id"),
        ("q=a&where=lenght+%3C+3", "did you mean"),
        ("q=a&group=true", "whole"),
        ("q=a&near=row-250", "q) or the id of a row"),
    ],
)
def test_a_question_without_an_answer_is_explained_on_the_page(client: Client, query: str, words: str):
    """row-3 has died."""
    status, page = client.get(f"/?{query}")
    assert status == 400
    assert words in page.split('class="problem"')[1]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/?q=a&wher=x", "found 'wher'; did you mean 'where'?"),
        ("/?q=a&n=5", "found 'n'; remove it"),
        ("/?q=a&k=5&k=6", "found 'k' again; remove one"),
        ("/map?color=lang", "did you mean 'colour'?"),
    ],
)
def test_parameters_that_a_page_does_not_have_are_refused(client: Client, path: str, words: str):
    status, problem = client.get(path)
    assert status == 400
    assert words in json.loads(problem)["message"]


def test_nothing_from_a_corpus_or_an_address_is_run(client: Client):
    for path in ("/?q=%3Cscript%3Ealert(1)%3C/script%3E&k=100", "/?near=%3Cscript%3E", "/map?colour=lang"):
        page = client.get(path)[1]
        assert "<script" not in page.lower()
    near = client.get(f"/?near={urllib.parse.quote(SCRIPT_ID, safe='')}")[1]
    assert "&lt;script&gt;alert" in near, "it is shown as text"


def test_the_map_shows_every_live_row_of_a_small_release(client: Client, release: OpenRelease):
    page = client.get("/map")[1]
    shown = [urllib.parse.unquote(each) for each in re.findall(r'<a href="/\?near=([^"]*)"><circle', page)]
    assert sorted(shown) == sorted(release.search("a", 1_000)["id"].to_pylist())
    assert len(shown) == 200
    page = client.get("/map?colour=lang")[1]
    labels = re.findall(r'<span class="swatch g\d"></span>(.*?)</li>', page)
    assert sorted(labels) == ["de", "en", "none"]
    assert [page.count(f'class="point g{number}"') for number in range(3)] == [67, 67, 66]
    assert client.get("/map?colour=length")[1].count('<span class="swatch') == 6
    assert "</span>10000-01-01T00:00:00" in client.get("/map?colour=until")[1], "a time that Python has not"
    status, problem = client.get("/map?colour=langs")
    assert (status, "GET /map: colour: expected " in problem) == (400, True), problem


@pytest.fixture
def slow_umap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package umap that waits for `may_end`, and whose first drawing fails."""
    (tmp_path / "umap.py").write_text(SLOW_UMAP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "umap", raising=False)
    import umap

    yield umap
    umap.may_end.set()
    del sys.modules["umap"]


def test_requests_are_answered_while_a_map_is_drawn_once(root: str, slow_umap: ModuleType):
    with serving(root) as client, ThreadPoolExecutor(50) as pool:
        asking = [pool.submit(client.get, "/map") for _ in range(50)]
        wait_until(lambda: bool(slow_umap.calls))
        assert client.get("/index.html")[0] == 200, "a route that needs a thread"
        assert client.post("/search", {"queries": ["a man reads"]})[0] == 200
        for status, page in (each.result() for each in asking):
            assert status == 503
            assert "is being drawn" in page
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(f"{client.url}/map")
        assert raised.value.headers["Retry-After"] == raised.value.headers["Refresh"] == "3"
        assert len(slow_umap.calls) == 1
        slow_umap.may_end.set()
        wait_until(lambda: "ArithmeticError, a defect of the program" in client.get("/map")[1])
        wait_until(lambda: "by UMAP of their vectors" in client.get("/map")[1])
        assert client.get("/map?colour=lang")[0] == 200
    assert len(slow_umap.calls) == 2, "the drawing that failed was repeated, and the other one kept"


def test_reports_of_nights_are_found_from_the_page(client: Client):
    page = client.get("/")[1]
    for path in re.findall(r'href="(/[^"?]*)"', page):
        assert client.get(path)[0] == 200, path
    overview = client.get("/index.html")[1]
    for path in re.findall(r'href="(releases/[^"]*)"', overview):
        assert client.get(f"/{path}")[0] == 200, path
    assert client.get("/releases/9/report.html")[0] == 404
    assert client.get("/releases/..%2F..%2Findex/report.html")[0] in (404, 422)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_shows_the_page_as_it_was_sent(client: Client, tmp_path: Path):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    picture = tmp_path / "page.png"
    page = f"{client.url}/?q=a+man+reads"
    subprocess.run([*command, f"--screenshot={picture}", page], check=True, capture_output=True, timeout=120)
    dumped = subprocess.run(
        [*command, "--dump-dom", page], check=True, capture_output=True, text=True, timeout=120
    )
    assert shown_ids(dumped.stdout) == shown_ids(client.get("/?q=a+man+reads")[1])
    assert picture.stat().st_size > 10_000, "the page is not blank: its style is allowed by its own policy"
