"""Nights of chunks equal first nights, also after kills; answers are grouped by document."""

import contextlib
import html
import json
import re
import urllib.parse
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import load_settings
from pipeline.errors import ConfigError
from pipeline.flows.corpus import corpus_of
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.planning.night_plan import plan
from pipeline.flows.night.planning.preflight import preflight
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from tests.conftest import CommandResult
from tests.flows.conftest import job_arguments, sentences
from tests.flows.night.test_incremental import Night, assert_equal_releases, live_vectors
from tests.serve.serving import serving

pytestmark = pytest.mark.usefixtures("cluster")
SENTENCES = sentences(60, seed=5)
FLAT = ("index.kind=flat", "whiten.mode=off")
CUT = ("corpus.chunk.by=sentences", "corpus.chunk.max_tokens=48", "corpus.chunk.overlap=12")


def document(*numbers: int) -> str:
    return ". ".join(f"The {SENTENCES[number]}" for number in numbers)


BASE = [(f"base-{number}", document(*range(number, number + 9))) for number in range(6)]
documents = st.lists(st.integers(0, 59), max_size=8).map(lambda numbers: document(*numbers))
rows = st.lists(
    st.tuples(st.sampled_from([f"id-{number}" for number in range(9)]), documents), min_size=1, max_size=9
)
corpora = st.dictionaries(st.sampled_from(["a.parquet", "b.parquet"]), rows, min_size=1, max_size=2)


class StoppedError(BaseException):
    """The night was killed."""


@settings(max_examples=settings.default.max_examples // 10)  # an example is up to seven nights
@given(st.lists(st.tuples(corpora, st.integers(1, 40)), min_size=2, max_size=3))
def test_nights_and_killed_nights_equal_one_from_scratch(tmp_path, encoder, sequence):
    """Each night is first killed at one of its writes."""
    top = tmp_path / uuid.uuid4().hex
    night = Night(top / "nights", encoder, *FLAT, *CUT)
    for files, writes in sequence:
        night.put({"0.parquet": BASE, **files})
        run_killed(night, writes)
        night.run()
        check_conservation(night)
    scratch = Night(top / "scratch", encoder, *FLAT, *CUT)
    scratch.put(night.files)
    scratch.run()
    assert_equal_releases(night, scratch)


def run_killed(night: Night, writes: int) -> None:
    """Run a night that ends at a write to the store, as if it were killed there."""
    store = type(open_store(night.job.release.root))
    left, put = writes, store.put

    def put_or_die(self, local: Path, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoppedError
        put(self, local, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put", put_or_die)
        with contextlib.suppress(StoppedError):
            night.run()


def check_conservation(night: Night) -> None:
    """Check that every document is live, a duplicate, or otherwise quarantined, and that chunks fit."""
    manifest = night.current()
    counts = manifest.counts
    ordered = [row for name in sorted(night.files) for row in night.files[name]]
    good = [(row_id, text) for row_id, text in ordered if text]
    live = {row_id for row_id, _ in good}
    assert counts["documents_read"] == len(ordered)
    assert counts["documents"] == len(live)
    assert counts.get("quarantined_duplicate_id", 0) == len(good) - len(live)
    assert counts.get("quarantined_empty", 0) == len(ordered) - len(good)
    assert counts["documents_read"] == counts["documents"] + counts["quarantined"]
    assert counts["chunks"] == manifest.rows == len(live_vectors(night))
    assert counts["total"] == manifest.rows + counts["quarantined"]
    assert counts["truncated"] == 0
    assert {name.rpartition("#")[0] for name in live_vectors(night)} == live
    assert manifest.gates["row_conservation"].passed


@pytest.fixture
def nights(tmp_path: Path, encoder: Path) -> Callable[..., Night]:
    return lambda *overrides: Night(tmp_path / uuid.uuid4().hex, encoder, *FLAT, *overrides)


def test_only_the_chunks_that_changed_are_encoded(nights: Callable[..., Night]):
    night = nights(*CUT)
    night.put({"a.parquet": BASE})
    first = night.run()
    chunks = live_vectors(night)
    night.put({"a.parquet": [("base-0", document(50, *range(9))), *BASE[1:]]})
    second = night.run()
    assert second.facts["counts"]["new"] + second.facts["counts"]["changed"] > 1
    now = {vector for name, vector in live_vectors(night).items() if name.startswith("base-0#")}
    new = now - set(chunks.values())
    assert second.facts["counts"]["encoded"] == len(new) < len(now)
    assert first.facts["counts"]["documents"] == len(BASE)
    report = (Path(night.job.release.root) / "releases" / "00000002" / "report.html").read_text()
    assert f"<dt>Chunks live</dt><dd>{len(chunks)}</dd><dd>of {len(BASE)} documents</dd>" in report
    night.put({"a.parquet": BASE[1:]})
    assert night.run().facts["counts"]["deleted"] == len(now)
    assert not any(name.startswith("base-0#") for name in live_vectors(night))


def test_other_settings_cut_again_and_equal_chunks_keep_their_vectors(nights: Callable[..., Night]):
    night = nights(*CUT)
    night.put({"a.parquet": BASE})
    night.run()
    before = set(live_vectors(night).values())
    for chunk in ({"by": "sentences", "max_tokens": 48}, {"by": "tokens"}, {}):
        chosen = type(night.job.corpus.chunk)(**chunk)
        corpus = night.job.corpus.model_copy(update={"chunk": chosen})
        night.job = night.job.model_copy(update={"corpus": corpus})
        outcome = night.run()
        assert outcome.status == "published"
        after = list(live_vectors(night).values())
        if chunk:  # a whole text is truncated, perhaps to the tokens of a chunk, whose vector is equal
            assert outcome.facts["counts"]["encoded"] == sum(vector not in before for vector in after)
        before = set(after)
        scratch = nights(*(f"corpus.chunk.{name}={value}" for name, value in chunk.items()))
        scratch.put(night.files)
        scratch.run()
        assert_equal_releases(night, scratch)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, encoder: Path, child: LocalWorkers) -> OpenRelease:
    night = Night(tmp_path_factory.mktemp("searched"), encoder, *FLAT, *CUT)
    many = [("many", document(*range(60)))]
    night.put({"a.parquet": [*BASE, *many, *((str(number), document(number)) for number in range(20))]})
    with connect(ClusterSettings(), Stages(), local=child):
        night.run()
    return open_release(night.job.release.root)


@pytest.mark.parametrize("k", [1, 5, 27, 40, 10**13])
def test_grouped_answers_are_the_best_chunks_of_the_nearest_documents(searched: OpenRelease, k: int):
    """The oracle groups the answers of a search for all chunks."""
    texts = SENTENCES[:10]
    every = searched.search(texts, len(searched), texts=True).to_pylist()
    expected = []
    for query in range(len(texts)):
        best: dict[str, dict[str, object]] = {}
        for row in (row for row in every if row["query"] == query):
            best.setdefault(row["parent"], row)
        expected += [row | {"rank": rank} for rank, row in enumerate(list(best.values())[:k], 1)]
    found = searched.search(texts, k, texts=True, group=True).to_pylist()
    assert [(row["query"], row["rank"], row["id"]) for row in found] == [
        (row["query"], row["rank"], row["id"]) for row in expected
    ]
    np.testing.assert_allclose([row["score"] for row in found], [row["score"] for row in expected], atol=1e-6)
    whole = dict([*BASE, ("many", document(*range(60))), *((str(n), document(n)) for n in range(20))])
    assert all(whole[row["parent"]][row["start"] : row["end"]] == row["text"] for row in found)


def test_the_command_groups_and_says_how_many_documents_there_are(
    searched: OpenRelease, manta: Callable[..., CommandResult]
):
    root = searched._releases.store.uri
    done = manta("search", root, SENTENCES[0], "-k", "40", "--group", "--json")
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert len({answer["parent"] for answer in answers}) == len(answers) == 27
    assert "40 answers were asked for, and release 1 has 27 documents" in done.err
    shown = manta("search", root, SENTENCES[0], "-k", "2", "--group").out.splitlines()
    assert len(shown) == 3
    assert answers[0]["id"] in shown[1]


def test_the_service_groups_as_the_release_does(searched: OpenRelease):
    queries = SENTENCES[:3]
    expected = searched.search(queries, 5, texts=True, group=True).to_pylist()
    with serving(searched._releases.store.uri) as client:
        body = {"queries": queries, "k": 5, "texts": True, "group": True}
        status, found = client.post("/search", body)
        page = client.get(f"/?group=true&k=5&q={urllib.parse.quote(queries[0])}")[1]
    assert status == 200
    answers = [{"query": query, **row} for query, rows in enumerate(found["answers"]) for row in rows]
    assert [row | {"score": 0} for row in answers] == [row | {"score": 0} for row in expected]
    np.testing.assert_allclose([row["score"] for row in answers], [row["score"] for row in expected])
    shown = [html.unescape(each) for each in re.findall(r'<div class="id">(.*?)</div>', page)]
    assert shown == [row["id"] for row in expected[:5]]


def test_a_release_without_chunks_is_not_grouped(nights: Callable[..., Night]):
    night = nights()
    night.put({"a.parquet": BASE})
    night.run()
    with pytest.raises(ConfigError, match="release 1, whose rows are whole texts"):
        open_release(night.job.release.root).search("text", group=True)


def test_plan_and_preflight_count_chunks(nights: Callable[..., Night]):
    night = nights(*CUT)
    night.put({"a.parquet": BASE})
    estimated = plan(night.job, Stages())
    outcome = night.run()
    assert estimated.rows == outcome.rows
    assert estimated.truncated_share == 0
    checks = {check.name: check for check in preflight(night.job, Stages())}
    assert not any(check.problem for check in checks.values())
    assert f"{outcome.rows} sampled texts" in checks["tokens"].found


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("corpus.chunk.overlap=9",), "`by` to be tokens, sentences or headings"),
        (
            ("corpus.chunk.by=tokens", "corpus.chunk.max_tokens=40", "corpus.chunk.overlap=21"),
            "half of max_tokens",
        ),
        (("corpus.chunk.by=tokens", "corpus.chunk.max_tokens=20"), "greater than or equal to 34"),
        (("corpus.chunk.by=tokens", "corpus.keep=[parent]"), "corpus.keep to leave out parent"),
        (("corpus.chunk.by=words",), "'tokens', 'sentences' or 'headings'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path, encoder, overrides, expected):
    with pytest.raises(ConfigError, match=expected):
        load_settings(Job, None, (*job_arguments(tmp_path, encoder), "corpus.keep=[]", *overrides))


def test_more_tokens_than_the_encoder_takes_are_refused_before_reading(nights: Callable[..., Night]):
    night = nights("corpus.chunk.by=tokens", "corpus.chunk.max_tokens=65")
    night.put({"a.parquet": BASE})
    with pytest.raises(ConfigError, match="at most 64 tokens"):
        corpus_of(night.job)
    prompt = nights("corpus.chunk.by=tokens", f"encoder.prompt={'long ' * 40}")
    prompt.put({"a.parquet": BASE})
    with pytest.raises(ConfigError, match="of the prompt or special"):
        nightly(prompt.job, Stages())
    assert not list(Path(prompt.job.release.root).rglob("keys"))


def test_the_record_names_documents_and_chunks(nights: Callable[..., Night]):
    night = nights(*CUT)
    night.put({"a.parquet": [*BASE, BASE[0]]})
    night.run()
    corpus = Corpus.read(open_store(night.job.release.root), night.current().corpus)
    assert corpus.is_chunked
    assert (corpus.counts["rows"], corpus.counts["good"], corpus.counts["quarantined"]) == (7, 6, 1)
    assert corpus.counts["chunks"] == corpus.rows
